"""Videos show the evaluated episode and do not change it."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import cv2
import gymnasium
import numpy as np
import pytest

from lambda_actor import wire
from lambda_actor.environments import ActorEnvironment, make_environment
from runtime.errors import RunError
from runtime.show.video import Video, follow_body
from runtime.training.evaluation import Evaluator
from tests.environments import EPISODE_STEPS, StatefulCounter, policy_arrays


class Drawn(StatefulCounter):
    """Draws its count as a level of red."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 150}
    render_mode = None

    def render(self):
        assert self.render_mode == "rgb_array"
        return np.full((64, 48, 3), (20 * self.count, 0, 0), np.uint8)


class Dark(Drawn):
    """Has light for its first frame."""

    def render(self):
        if self.count:
            raise RuntimeError("no light")
        return super().render()


class Remembering(Drawn):
    """Pays one for each episode begun, and takes a step in each reset."""

    episodes = 0

    def reset(self, **options):
        self.episodes += 1
        super().reset(**options)
        return self.step(np.zeros(1))[0], {}

    def step(self, action):
        observation, _, *rest = super().step(action)
        return observation, float(self.episodes), *rest


def weights_for(environment: ActorEnvironment) -> bytes:
    network = "conv" if environment.spaces.is_pixels else "mlp"
    return wire.encode(wire.Kind.WEIGHTS, policy_arrays(spaces=environment.spaces, network=network))


def filmed(path: Path, environment: ActorEnvironment, episodes: int) -> tuple[Video, object]:
    video = Video(path, environment)
    evaluate = Evaluator(environment, episodes, seed=4, episode_over=video.end)
    with video.filming():
        return video, evaluate(weights_for(environment))


def frames_of(path: Path) -> tuple[np.ndarray, float]:
    """Returns frames, uint8 ``[T, H, W, 3]``, red first, and the frame rate per second."""
    capture, frames = cv2.VideoCapture(str(path)), []
    while (read := capture.read())[0]:
        frames.append(read[1][..., ::-1])
    return np.array(frames), capture.get(cv2.CAP_PROP_FPS)


def short_game() -> ActorEnvironment:
    game = gymnasium.wrappers.TimeLimit(make_environment("ALE/Qbert-v5").gymnasium_environment, 12)
    return ActorEnvironment(game, "a short game", "atari")


def test_a_game_is_shown_as_it_is_seen_by_people(tmp_path: Path) -> None:
    path = tmp_path / "game.mp4"
    environment = short_game()
    video, evaluation = filmed(path, environment, 2)
    assert evaluation == Evaluator(environment, 2, seed=4)(weights_for(environment))
    frames, frames_per_s = frames_of(path)
    assert frames.shape[1:] == (210, 160, 3)
    assert frames_per_s == pytest.approx(60.0, rel=1e-3)
    # The first episode only: the reset, 1 to 30 idle frames, and four frames for each of twelve steps.
    assert 1 + 1 + 48 <= len(frames) == video.frames <= 1 + 30 + 48
    assert len({frame.tobytes() for frame in frames}) > 5
    assert np.ptp(frames[-1], axis=-1).max() > 100, "it is gray"
    assert list(tmp_path.iterdir()) == [path]


def test_a_video_for_which_the_disk_has_no_room_is_refused_and_leaves_no_file(
    tmp_path: Path,
) -> None:
    """OpenCV itself reports nothing. Here no file may have more than a KiB."""
    before, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, most))
    try:
        with pytest.raises(
            RunError, match=r"--video .*: \d+ of \d+ frames were written; is the disk full"
        ):
            filmed(tmp_path / "game.mp4", short_game(), 1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (before, most))
    assert not list(tmp_path.iterdir())


def test_nothing_but_the_evaluation_resets_what_is_filmed_and_60_frames_a_second_suffice(
    tmp_path: Path,
) -> None:
    """An environment may remember earlier episodes, so evaluations with and without a video are the same."""
    plain, shown = (ActorEnvironment(Remembering(), "remembering") for _ in range(2))
    evaluation = Evaluator(plain, 2, seed=4)(weights_for(plain))
    assert len(set(evaluation.returns)) == 2
    assert filmed(tmp_path / "remembering.mp4", shown, 2)[1] == evaluation
    frames, frames_per_s = frames_of(tmp_path / "remembering.mp4")
    assert frames_per_s == pytest.approx(50.0)
    # Every third frame after the reset, its own step, and each of the policy's.
    np.testing.assert_allclose(
        frames[..., 0].mean(axis=(1, 2)),
        20.0 * np.array([1, *range(1, 1 + EPISODE_STEPS)])[::3],
        atol=4.0,
    )


def test_a_camera_of_the_model_follows_the_body_unless_a_view_was_chosen() -> None:
    for options, camera in (({}, "track"), ({"kwargs": {"camera_id": -1}}, None)):
        bare = make_environment("Hopper-v5", options=options).gymnasium_environment.unwrapped
        before = bare.mujoco_renderer.camera_id
        follow_body(bare)
        expected = bare.model.camera(camera).id if camera else before
        assert bare.mujoco_renderer.camera_id == expected


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        (StatefulCounter(), "no render mode rgb_array"),
        (Dark(), "RuntimeError: no light.*MUJOCO_GL is glfw.*MUJOCO_GL=egl.*libosmesa6"),
    ],
)
def test_what_cannot_be_drawn_is_refused_with_what_helps_and_leaves_no_file(
    environment: gymnasium.Env, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mujoco", None)
    monkeypatch.setenv("MUJOCO_GL", "glfw")
    with pytest.raises(RunError, match=f"(?s)--video: counter cannot be drawn: .*{words}"):
        filmed(tmp_path / "counter.mp4", ActorEnvironment(environment, "counter"), 1)
    assert not list(tmp_path.iterdir())
