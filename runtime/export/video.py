"""Records an evaluated episode as a video."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from lambda_actor import atari
from lambda_actor.environments import ActorEnvironment
from lambda_actor.errors import told
from runtime.errors import MissingExtraError, RunError
from runtime.records.files import check_place

VIDEO_S_MAX = 300.0
FRAMES_PER_S_MAX = 60.0
"""Faster environments contribute every second or third frame, and so on."""
CODECS = {".mp4": "vp09", ".webm": "VP80"}
"""By suffix, the formats that OpenCV writes and browsers play. VP9 takes several times longer than VP8."""
_GAME_FRAMES_PER_S = 60.0
_FRAMES_PER_S = 30.0
"""Default frame rate."""
_FOLLOWING = (1, 2)
"""MuJoCo's mjCAMLIGHT_TRACK and mjCAMLIGHT_TRACKCOM: cameras that move with a body, or with a center of mass."""


def choose_renderer() -> None:
    """Makes MuJoCo and pygame draw without a screen if there is none; call it before they are loaded."""
    if sys.platform == "linux" and not os.environ.get("DISPLAY"):
        os.environ["MUJOCO_GL"] = os.environ.get("MUJOCO_GL") or "egl"
        if not os.environ.get("WAYLAND_DISPLAY"):
            # Otherwise SDL looks for a screen, and prints a misleading error.
            os.environ.setdefault("SDL_VIDEODRIVER", "dummy")


class Video:
    """Films one environment until `end`: a frame after each reset and each of its own steps, at its own speed."""

    def __init__(self, path: Path, environment: ActorEnvironment) -> None:
        """Makes the environment draw itself; opens nothing yet.

        Args:
            path: Has a suffix in `CODECS`.
            environment: Drawn unwrapped, without a wrapper's smaller or gray pictures.

        Raises:
            RunError: The environment cannot be drawn.
        """
        self.path = path
        # Any, because its methods are replaced during filming.
        self._environment: Any = environment.gymnasium_environment.unwrapped
        self._name = environment.environment_id
        self._temporary = path.with_name(f".{path.stem}.{os.getpid()}.tmp{path.suffix}")
        if "rgb_array" not in self._environment.metadata.get("render_modes", ()):
            raise self._refusal("it has no render mode rgb_array")
        # The environment was made for actors, without rendering.
        self._environment.render_mode = "rgb_array"
        follow_body(self._environment)
        frames_per_s = (
            _GAME_FRAMES_PER_S
            if atari.is_game(self._environment)
            else float(self._environment.metadata.get("render_fps") or _FRAMES_PER_S)
        )
        self._stride = math.ceil(frames_per_s / FRAMES_PER_S_MAX)
        self.frames_per_s = frames_per_s / self._stride
        self._shown, self.frames, self._is_over, self._is_within = 0, 0, False, False
        self._writer: Any = None

    def _refusal(self, why: str) -> RunError:
        return RunError(f"--video: {self._name} cannot be drawn: {why}")

    def _frame(self) -> np.ndarray:
        try:
            frame = self._environment.render()
        except Exception as error:
            raise self._refusal(f"{told(error)}{advice()}") from error
        if (
            not isinstance(frame, np.ndarray)
            or frame.dtype != np.uint8
            or frame.ndim != 3
            or frame.shape[2] != 3
        ):
            raise self._refusal("render() returns no picture uint8 [H, W, 3]")
        return frame

    @contextmanager
    def filming(self) -> Iterator[None]:
        """Films inside the block; afterwards the file is complete, or does not exist.

        Raises:
            RunError: The environment cannot be drawn, or the file cannot be written.
        """
        bare = self._environment
        step, reset = bare.step, bare.reset
        bare.step, bare.reset = self._filmed(step), self._filmed(reset)
        try:
            yield
            self._finish()
        finally:
            bare.step, bare.reset = step, reset
            if self._writer is not None:
                self._writer.release()
            self._temporary.unlink(missing_ok=True)

    def end(self) -> None:
        """Stops filming."""
        self._is_over = True

    def _filmed(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            # Some reset() methods take a step themselves, which is not drawn.
            is_within, self._is_within = self._is_within, True
            try:
                result = method(*arguments, **options)
            finally:
                self._is_within = is_within
            if not (self._is_over or is_within):
                self._add()
            return result

        return call

    def _add(self) -> None:
        if self._shown % self._stride == 0:
            frame = self._frame()
            if self._writer is None:
                self._writer = _open_writer(
                    self._temporary, frame.shape, self.frames_per_s, self.path
                )
            # OpenCV's colors are blue, green, red.
            self._writer.write(np.ascontiguousarray(frame[..., ::-1]))
            self.frames += 1
            self._is_over = self.frames >= VIDEO_S_MAX * self.frames_per_s
        self._shown += 1

    def _finish(self) -> None:
        import cv2

        self._writer.release()
        written = cv2.VideoCapture(str(self._temporary)).get(cv2.CAP_PROP_FRAME_COUNT)
        # For a .webm, this follows from the length in milliseconds.
        if abs(written - self.frames) > 1 + 0.01 * self.frames:
            raise RunError(
                f"--video {self.path}: cannot be written: {max(written, 0.0):.0f} of {self.frames} frames "
                "are there; is the disk full?"
            )
        self._temporary.replace(self.path)


def follow_body(environment: Any) -> None:
    """Makes MuJoCo draw an environment from its model's first camera that follows a body.

    Gymnasium's default camera is fixed, so walkers leave the picture. Nothing changes without such a camera, or if the
    environment's creator chose a view.

    Args:
        environment: Unwrapped; any.
    """
    renderer, spec = getattr(environment, "mujoco_renderer", None), environment.spec
    is_chosen = (
        getattr(environment, "camera_id", None) is not None
        or getattr(environment, "camera_name", None) is not None
        or (spec is not None and "default_camera_config" in spec.kwargs)
    )
    if renderer is not None and not is_chosen:
        following = np.flatnonzero(np.isin(environment.model.cam_mode, _FOLLOWING))
        renderer.camera_id = int(following[0]) if len(following) else renderer.camera_id


def check_path(path: Path) -> None:
    """Checks that a video can be written.

    Raises:
        RunError: It cannot, or OpenCV is not installed.
    """
    try:
        import cv2  # noqa: F401
    except ModuleNotFoundError:
        raise MissingExtraError("--video", "OpenCV", "export") from None
    except ImportError as error:
        raise RunError(f"--video needs OpenCV, which does not import: {error}") from None
    check_place("--video", path, CODECS)


def _open_writer(temporary: Path, shape: tuple[int, ...], frames_per_s: float, path: Path) -> Any:
    import cv2

    height, width, _ = shape
    writer = cv2.VideoWriter(
        str(temporary),
        cv2.CAP_FFMPEG,
        cv2.VideoWriter.fourcc(*CODECS[path.suffix.lower()]),
        frames_per_s,
        (width, height),
    )
    if not writer.isOpened():
        raise RunError(f"--video {path}: cannot be written: OpenCV opens no video there")
    return writer


def advice() -> str:
    """Returns advice if MuJoCo cannot draw or load, nearly always because of OpenGL; otherwise nothing."""
    if not {"mujoco", "OpenGL"} & sys.modules.keys():
        return ""
    return (
        f"\nMUJOCO_GL is {os.environ.get('MUJOCO_GL') or 'not set'}. Without a screen: MUJOCO_GL=egl with a GPU's "
        "driver or Mesa (Debian, Ubuntu: apt install libegl1 libgl1), or MUJOCO_GL=osmesa (apt install libosmesa6)"
    )
