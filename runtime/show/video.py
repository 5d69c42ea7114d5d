"""Records an evaluated episode as a video."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from lambda_actor import atari
from lambda_actor.environments import ActorEnvironment
from lambda_actor.errors import describe_error
from lambda_actor.making import drawing_advice
from runtime.errors import MissingExtraError, RunError
from runtime.records.files import check_place

VIDEO_S_MAX = 300.0
FRAMES_PER_S_MAX = 60.0
"""Faster environments contribute every second or third frame, and so on."""
CODEC = "vp09"
"""VP9, which OpenCV writes and browsers play."""
_GAME_FRAMES_PER_S = 60.0
_FRAMES_PER_S = 30.0
"""Default frame rate."""
_VIEWS = {"camera_id", "camera_name", "default_camera_config"}
_FOLLOWING = (1, 2)
"""MuJoCo's mjCAMLIGHT_TRACK and mjCAMLIGHT_TRACKCOM: cameras that move with a body, or with a center of mass."""


def choose_renderer() -> None:
    """Makes MuJoCo and pygame draw without a screen if there is none; call it before they are loaded."""
    if not os.environ.get("DISPLAY"):
        os.environ["MUJOCO_GL"] = os.environ.get("MUJOCO_GL") or "egl"
        if not os.environ.get("WAYLAND_DISPLAY"):
            # Otherwise SDL looks for a screen, and prints a misleading error.
            os.environ.setdefault("SDL_VIDEODRIVER", "dummy")


class Video:
    """Films one environment until `end`: a frame after each reset and each of its own steps, at its own speed."""

    def __init__(self, path: Path, environment: ActorEnvironment) -> None:
        """Makes the environment draw itself; opens nothing yet.

        Args:
            path: A file ``.mp4``.
            environment: Drawn unwrapped, without a wrapper's smaller or gray pictures.

        Raises:
            RunError: The environment cannot be drawn.
        """
        # Any, because its methods are replaced during filming.
        self._environment: Any = environment.gymnasium_environment.unwrapped
        self._name = environment.environment_id
        metadata = self._environment.metadata
        if "rgb_array" not in metadata.get("render_modes", ()):
            raise RunError(
                f"--video: {self._name} cannot be drawn: it has no render mode rgb_array"
            )
        # The environment was made for actors, without rendering.
        self._environment.render_mode = "rgb_array"
        follow_body(self._environment)
        is_game = atari.is_game(self._environment)
        drawn_per_s = _GAME_FRAMES_PER_S if is_game else metadata.get("render_fps") or _FRAMES_PER_S
        self._stride = math.ceil(drawn_per_s / FRAMES_PER_S_MAX)
        self.frames_per_s = drawn_per_s / self._stride
        self.path = path
        self.frames = 0
        self._seen = 0
        self._is_over = False
        self._writer: Any = None

    @contextmanager
    def filming(self) -> Iterator[None]:
        """Films inside the block; afterwards the file is complete, or does not exist.

        Raises:
            RunError: The environment cannot be drawn, or the file cannot be written.
        """
        import cv2

        bare = self._environment
        step = bare.step
        reset = bare.reset
        temporary = self.path.with_name(f".{self.path.stem}.{os.getpid()}.tmp{self.path.suffix}")
        bare.step = self._filmed(step, temporary)
        bare.reset = self._filmed(reset, temporary)
        try:
            yield
            self._writer.release()
            # OpenCV does not report a full disk.
            written = cv2.VideoCapture(str(temporary)).get(cv2.CAP_PROP_FRAME_COUNT)
            if written != self.frames:
                raise RunError(
                    f"--video {self.path}: {max(written, 0.0):.0f} of {self.frames} frames were written; is the disk "
                    "full?"
                )
            temporary.replace(self.path)
        finally:
            bare.step = step
            bare.reset = reset
            temporary.unlink(missing_ok=True)

    def end(self) -> None:
        """Stops filming."""
        self._is_over = True

    def _filmed(self, method: Callable[..., Any], temporary: Path) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            result = method(*arguments, **options)
            if not self._is_over and self._seen % self._stride == 0:
                self._add(temporary)
            self._seen += 1
            return result

        return call

    def _add(self, temporary: Path) -> None:
        import cv2

        try:
            frame = self._environment.render()
            # OpenCV's colors are blue, green, red.
            picture = np.ascontiguousarray(frame[..., ::-1])
        except Exception as error:
            raise RunError(
                f"--video: {self._name} cannot be drawn: {describe_error(error)}{drawing_advice()}"
            ) from error
        if self._writer is None:
            height, width, _ = frame.shape
            self._writer = cv2.VideoWriter(
                str(temporary),
                cv2.CAP_FFMPEG,
                cv2.VideoWriter.fourcc(*CODEC),
                self.frames_per_s,
                (width, height),
            )
            if not self._writer.isOpened():
                raise RunError(
                    f"--video {self.path}: cannot be written: OpenCV opens no video there"
                )
        self._writer.write(picture)
        self.frames += 1
        self._is_over = self.frames >= VIDEO_S_MAX * self.frames_per_s


def follow_body(environment: Any) -> None:
    """Makes MuJoCo draw an environment from its model's first camera that follows a body.

    Gymnasium's default camera is fixed, so walkers leave the picture. Nothing changes without such a camera, or if the
    environment's arguments choose a view.

    Args:
        environment: Unwrapped; any.
    """
    renderer = getattr(environment, "mujoco_renderer", None)
    if renderer is None or _VIEWS & getattr(environment.spec, "kwargs", {}).keys():
        return
    following = np.flatnonzero(np.isin(environment.model.cam_mode, _FOLLOWING))
    if len(following):
        renderer.camera_id = int(following[0])


def check_path(path: Path) -> None:
    """Checks that a video can be written.

    Raises:
        RunError: It cannot, or OpenCV is not installed.
    """
    try:
        import cv2  # noqa: F401
    except ImportError:
        raise MissingExtraError("--video", "OpenCV", "export") from None
    check_place("--video", path, (".mp4",))
