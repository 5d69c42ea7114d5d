"""What is tried: groups of packages that can be installed together, with the environments of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.conformance.odd import ACTIONS, OBSERVATIONS

FOUND = "found.json"
"""In the folder of each row: what was found of it."""
FILTER = "gymnasium.wrappers.FilterObservation"


@dataclass(frozen=True)
class Row:
    """One environment, and how it is trained.

    Attributes:
        environment: ``environment`` of the experiment file.
        algorithm: ``ppo``, ``impact`` or ``impala``.
        fragment_steps: ``actor.fragment_steps``; shorter than an episode, so that some stay open.
    """

    environment: dict[str, Any]
    algorithm: str = "ppo"
    fragment_steps: int = 16


@dataclass(frozen=True)
class Group:
    """Packages that are installed together over the project's own environment.

    Attributes:
        title: For people.
        packages: Whose versions are told.
        requirements: What pip installs; nothing if the project's requirements have it.
        variables: Of the processes that try it.
    """

    title: str
    packages: tuple[str, ...]
    requirements: tuple[str, ...]
    rows: tuple[Row, ...]
    variables: Mapping[str, str] = field(default_factory=dict)


def _row(id: str, algorithm: str = "ppo", *, fragment_steps: int = 16, wrappers: Sequence[Any] = (),
         **environment: Any) -> Row:
    section = {"id": id, **environment, **({"wrappers": list(wrappers)} if wrappers else {})}
    return Row(section, algorithm, fragment_steps)


def _odd(oddity: str, **kwargs: Any) -> Row:
    return _row("benchmarks.conformance.odd:make", kwargs={"oddity": oddity, **kwargs})


FAULTS = ("huge_rewards", "reward_array", "several_rewards", "nondeterministic", "clock", "list_observations",
          "outside_its_space", "prints", "another_shape", "raises", "exits", "nan_reward", "nan_observation")

GROUPS = {
    "gymnasium": Group("Gymnasium: classic control, toy text, Box2D, MuJoCo", ("gymnasium", "mujoco", "Box2D"), (), (
        _row("CartPole-v1", fragment_steps=8),
        _row("Acrobot-v1", "impact"),
        _row("MountainCarContinuous-v0", "impala"),
        _row("Pendulum-v1", "impact"),
        _row("FrozenLake-v1", fragment_steps=4),
        _row("Taxi-v4", "impala"),
        _row("Blackjack-v1"),
        _row("Blackjack-v1", max_episode_steps=10, fragment_steps=3),
        _row("CliffWalking-v1", max_episode_steps=200),
        _row("LunarLander-v3"),
        _row("LunarLander-v3", "impact", kwargs={"continuous": True}),
        _row("BipedalWalker-v3"),
        _row("CarRacing-v3", "impala"),
        _row("Hopper-v5", fragment_steps=8),
        _row("Humanoid-v5", "impala"),
        _row("Pusher-v5", "impact"),
    )),
    "ale": Group("Arcade Learning Environment", ("ale-py",), (), (
        _row("ALE/Breakout-v5"),
        _row("SpaceInvadersNoFrameskip-v4", "impact"),
        _row("ALE/Pong-v5", "impala", preprocessing="none"),
        _row("ALE/Qbert-v5", preprocessing="none", kwargs={"obs_type": "ram"}),
    )),
    "minigrid": Group("MiniGrid", ("minigrid",), ("minigrid==3.2.0",), (
        _row("minigrid:MiniGrid-Empty-5x5-v0"),
        _row("minigrid:MiniGrid-Empty-5x5-v0", wrappers=[{FILTER: {"filter_keys": ["direction", "image"]}}]),
        _row("minigrid:MiniGrid-Empty-5x5-v0", max_episode_steps=100, wrappers=[
            {FILTER: {"filter_keys": ["direction", "image"]}}]),
        _row("minigrid:MiniGrid-Empty-5x5-v0", "impala", max_episode_steps=100, wrappers=[
            "minigrid.wrappers.RGBImgPartialObsWrapper", {FILTER: {"filter_keys": ["direction", "image"]}}]),
        _row("minigrid:MiniGrid-DoorKey-6x6-v0", "impact", max_episode_steps=360, wrappers=[
            "minigrid.wrappers.RGBImgPartialObsWrapper", "minigrid.wrappers.ImgObsWrapper"]),
        _row("minigrid:BabyAI-GoToLocal-v0", "impala", max_episode_steps=64, wrappers=[
            "minigrid.wrappers.FlatObsWrapper"]),
    )),
    "highway": Group("highway-env", ("highway-env",), ("highway-env==1.12.1",), (
        _row("highway_env:highway-fast-v0"),
        _row("highway_env:highway-fast-v0", max_episode_steps=40),
        _row("highway_env:parking-v0", "impact", max_episode_steps=100),
        _row("highway_env:racetrack-v0", "impala", max_episode_steps=100),
        _row("highway_env:intersection-v1", max_episode_steps=20, fragment_steps=6),
    )),
    "robotics": Group("Gymnasium-Robotics", ("gymnasium-robotics",), ("gymnasium-robotics==1.4.2",), (
        _row("gymnasium_robotics:FetchReach-v4"),
        _row("gymnasium_robotics:PointMaze_UMaze-v3", "impact"),
        _row("gymnasium_robotics:AdroitHandDoor-v1", "impala"),
    )),
    "dm_control": Group("dm_control with Shimmy, on MuJoCo 3", ("dm-control", "shimmy", "mujoco"), (
        "dm-control==1.0.50", "shimmy==2.0.1", "mujoco==3.17.0"), (
        _row("shimmy:dm_control/cartpole-swingup-v0"),
        _row("shimmy:dm_control/cartpole-swingup-v0", max_episode_steps=1000),
        _row("shimmy:dm_control/walker-walk-v0", "impact", max_episode_steps=1000),
        _row("shimmy:dm_control/quadruped-run-v0", "impala", max_episode_steps=1000),
    )),
    "dm_control_mujoco_4": Group("dm_control with Shimmy, on MuJoCo 4", ("dm-control", "shimmy", "mujoco"), (
        "dm-control==1.0.50", "shimmy==2.0.1"), (
        _row("shimmy:dm_control/cartpole-swingup-v0", max_episode_steps=1000),
        _row("shimmy:dm_control/walker-walk-v0", max_episode_steps=1000),
    )),
    "gymnasium_mujoco_3": Group("Gymnasium and MuJoCo 3", ("gymnasium", "mujoco"), ("mujoco==3.17.0",), (
        _row("Hopper-v5", fragment_steps=8),
        _row("Humanoid-v5", "impala"),
    )),
    "bsuite": Group("bsuite with Shimmy", ("bsuite", "shimmy"), ("bsuite==0.3.6", "shimmy==2.0.1"), (
        _row("shimmy:bsuite/catch-v0", max_episode_steps=9, fragment_steps=4),
        _row("shimmy:bsuite/cartpole-v0", "impact", max_episode_steps=1000),
    )),
    "minatar": Group("MinAtar", ("MinAtar",), ("minatar==1.0.15",), (
        _row("minatar.gym:BaseEnv", kwargs={"game": "breakout"}, max_episode_steps=500, fragment_steps=4),
        _row("minatar.gym:BaseEnv", "impala", kwargs={"game": "freeway"}, max_episode_steps=2500),
    )),
    "flappy_bird": Group("Flappy Bird", ("flappy-bird-gymnasium",), ("flappy-bird-gymnasium==0.4.0",), (
        _row("flappy_bird_gymnasium:FlappyBird-v0"),
        _row("flappy_bird_gymnasium:FlappyBird-v0", "impact", max_episode_steps=1000),
    )),
    "mo_gymnasium": Group("MO-Gymnasium", ("mo-gymnasium",), ("mo-gymnasium==1.3.2",), (
        _row("mo_gymnasium:mo-mountaincar-v0"),
        _row("mo_gymnasium:mo-mountaincar-v0", wrappers=["mo_gymnasium.wrappers.LinearReward"]),
        _row("mo_gymnasium:deep-sea-treasure-v0", "impact", fragment_steps=4, wrappers=[
            {"mo_gymnasium.wrappers.LinearReward": {"weight": [1.0, 0.1]}}]),
    )),
    "miniworld": Group("MiniWorld", ("miniworld",), ("miniworld==2.1.0",), (
        _row("miniworld:MiniWorld-Hallway-v0"),
        _row("miniworld:MiniWorld-Hallway-v0", max_episode_steps=250),
        _row("miniworld:MiniWorld-OneRoom-v0", "impact", max_episode_steps=180),
    ), {"PYGLET_HEADLESS": "true"}),
    "panda": Group("panda-gym: PyBullet", ("panda-gym", "pybullet"), ("panda-gym==3.0.7",), (
        _row("panda_gym:PandaReach-v3"),
        _row("panda_gym:PandaPush-v3", "impala"),
    )),
    "metaworld": Group("Meta-World", ("metaworld",), ("metaworld==3.1.1",), (
        _row("metaworld:Meta-World/MT1", kwargs={"env_name": "reach-v3", "seed": 0}),
    )),
    "popgym": Group("POPGym", ("popgym",), ("popgym==1.0.7",), (
        _row("popgym:popgym-RepeatPreviousEasy-v0"),
        _row("popgym:popgym-RepeatPreviousEasy-v0", max_episode_steps=48),
        _row("popgym:popgym-PositionOnlyCartPoleEasy-v0", "impact", max_episode_steps=200),
    )),
    "tetris": Group("Tetris Gymnasium", ("tetris-gymnasium",), ("tetris-gymnasium==0.3.1",), (
        _row("tetris_gymnasium.envs:tetris_gymnasium/Tetris"),
        _row("tetris_gymnasium.envs:tetris_gymnasium/Tetris", max_episode_steps=1000),
    )),
    "vizdoom": Group("ViZDoom", ("vizdoom",), ("vizdoom==1.3.2",), (
        _row("vizdoom.gymnasium_wrapper:VizdoomBasic-v1"),
        _row("vizdoom.gymnasium_wrapper:VizdoomBasic-v1", max_episode_steps=300),
        _row("vizdoom.gymnasium_wrapper:VizdoomBasic-v1", max_episode_steps=300, wrappers=[
            {FILTER: {"filter_keys": ["screen"]}}]),
    )),
    "nethack": Group("NetHack Learning Environment, MiniHack", ("nle", "minihack"), ("nle==1.3.0", "minihack==1.0.2"), (
        _row("nle:NetHackScore-v0", max_episode_steps=5000, wrappers=[{FILTER: {"filter_keys": ["blstats"]}}]),
        _row("nle:NetHackScore-v0", truncate_at_fragment=True, wrappers=[{FILTER: {"filter_keys": ["blstats"]}}]),
        _row("minihack:MiniHack-Room-5x5-v0", max_episode_steps=100, wrappers=[{FILTER: {"filter_keys": ["chars"]}}]),
        _row("minihack:MiniHack-Room-5x5-v0", "impact", truncate_at_fragment=True, wrappers=[
            {FILTER: {"filter_keys": ["chars"]}}]),
    )),
    "pusht": Group("PushT", ("gym-pusht",), ("gym-pusht==0.1.8",), (
        _row("gym_pusht:gym_pusht/PushT-v0"),
    )),
    "mobile": Group("mobile-env", ("mobile-env",), ("mobile-env==2.1.0",), (
        _row("mobile_env:mobile-small-central-v0", "impact", max_episode_steps=100),
    )),
    "pettingzoo": Group("PettingZoo", ("pettingzoo",), ("pettingzoo==1.27.0",), (
        _row("pettingzoo.classic.tictactoe_v3:env"),
    )),
    "own": Group("Odd ones of our own", ("gymnasium",), (), (
        *(_odd(name) for name in (*OBSERVATIONS, *ACTIONS)),
        *(_odd(name) for name in FAULTS),
        _row("benchmarks.conformance.odd:make", kwargs={"oddity": "huge_rewards"}, wrappers=[
            {"gymnasium.wrappers.ClipReward": {"min_reward": -10.0, "max_reward": 10.0}}]),
        _odd("float64", limit=None),
        *(_odd(name, fault_step=5) for name in ("another_shape", "raises", "exits", "nan_reward")),
        _row("benchmarks.conformance.odd:Odd", kwargs={"oddity": "dict"}, truncate_at_fragment=True),
    )),
}
