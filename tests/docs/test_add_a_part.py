"""docs/design/add-a-part.md: trains with its examples exactly as printed, and changes nothing else."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import safetensors.numpy
import yaml

from tests.helpers import PATIENCE_S, ROOT

PAGE = (ROOT / "docs" / "design" / "add-a-part.md").read_text()
SECTIONS = dict(re.findall(r"^## An? (\w+)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        env=os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{folder}"},
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all examples' files, after one process has trained with each."""
    folder = tmp_path_factory.mktemp("page")
    for part, text in SECTIONS.items():
        for name, code in re.findall(
            r"`(\w+\.py)`:\n\n```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL
        ):
            (folder / name).write_text(code)
        (experiment,) = re.findall(r"^```yaml\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
        (folder / f"{part}.yaml").write_text(experiment)
    done = run(
        folder,
        "-m",
        "tests.docs.one_process",
        *(f"train {part}.yaml --out {part}" for part in SECTIONS),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def rows(folder: Path, part: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / part / "rounds.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(
    ("part", "section"),
    [
        ("scaler", "scaler"),
        ("algorithm", "algorithm"),
        ("fleet", "fleet"),
        ("updater", "learner"),
    ],
)
def test_the_run_keeps_what_the_page_wrote(folder: Path, part: str, section: str) -> None:
    given = yaml.safe_load((folder / f"{part}.yaml").read_text())[section]
    kept = yaml.safe_load((folder / part / "config.yaml").read_text())[section]
    for key, value in given.items():
        assert kept[key] == (kept[key] | value if isinstance(value, dict) else value)


def test_the_scalers_decisions_follow_the_returns(folder: Path) -> None:
    count, best = 2, None
    for row in rows(folder, "scaler"):
        assert row["actor_count_wanted"] == row["actor_count"] == count
        found = row["episode_return_mean"]
        if found is not None:
            count = min(max(count + (2 if best is None or found > best else -2), 2), 6)
            best = found if best is None else max(best, found)
    assert len({row["actor_count"] for row in rows(folder, "scaler")}) > 1


def test_the_algorithm_takes_one_step_a_round(folder: Path) -> None:
    assert [(row["updates"], row["learning_rate"]) for row in rows(folder, "algorithm")] == [
        (1, 0.01)
    ] * 2
    assert optimiser_steps(folder / "algorithm") == 2.0


def test_the_fleets_actors_return_and_are_billed(folder: Path) -> None:
    assert [
        (row["round_index"], row["actors_failed"], row["actors_late"])
        for row in rows(folder, "fleet")
    ] == [(1, 0, 0), (2, 0, 0)]
    assert all(row["actors_cost_usd"] > 0.0 for row in rows(folder, "fleet"))


def test_the_updater_takes_one_step_a_round(folder: Path) -> None:
    found = [
        (row["round_index"], row["policy_version"], row["updates"])
        for row in rows(folder, "updater")
    ]
    assert found == [(1, 0, 1), (2, 1, 1)]
    assert optimiser_steps(folder / "updater") == 2.0


def optimiser_steps(run: Path) -> float:
    arrays = safetensors.numpy.load_file(max((run / "checkpoints").glob("*.safetensors")))
    return float(arrays["learner.optimizer.policy.step"])


def test_keys_are_explained_checked_and_in_the_reference(folder: Path) -> None:
    """Uses one process, because each start takes a second."""
    code = """
import sys
from runtime.cli.main import main
for path in ("momentum:MomentumSettings", "one_step:OneStepSettings", "thread_fleet:ThreadSettings"):
    main(["explain", path])
for part, setting in (("scaler", "scaler.actors_stp=3"), ("updater", "learner.factor=-1"),
                      ("algorithm", "algorithm.rounds=asynchronous"),
                      ("scaler", "scaler.kind=momentum:MomentumScaler"), ("scaler", "scaler.kind=nowhere:Settings")):
    assert main(["train", f"{part}.yaml", "--set", setting]) == 2
sys.path.insert(0, ROOT)
import docs.make_experiment_file_md as page
print(page.table())
""".replace("ROOT", repr(str(ROOT)))
    done = run(folder, "-c", code)
    assert done.returncode == 0, done.stdout + done.stderr
    for words in (
        "  scaler.actors_step (momentum:MomentumSettings)\n      actors that a round has more or fewer",
        "| `scaler.actors_step` | 1 (momentum:MomentumSettings) | integer 1 to 16,384 | actors that a round has",
    ):
        assert words in done.stdout
    for words in (
        "did you mean scaler.actors_step?",
        "learner.factor = -1 is not allowed; allowed: a number above 0",
        "a2c_settings:A2cSettings trains on what its newest policy",
        "scaler.kind = 'momentum:MomentumScaler' is not allowed; allowed: a subclass of nitro_rl.ScalerSet",
        "scaler.kind = 'nowhere:Settings' cannot be imported: ModuleNotFoundError: No module named 'nowhere'; "
        "allowed: a module of the present folder, of one in PYTHONPATH",
    ):
        assert words in done.stderr


def test_what_was_added_to_a_process_is_nothing_to_another(folder: Path) -> None:
    """The algorithm's run began in a process that also knew the scaler. Its learner may have its own processes."""
    done = run(
        folder,
        "-m",
        "runtime",
        "train",
        "algorithm.yaml",
        "--out",
        "algorithm",
        "--resume",
        "--set",
        "stop.max_rounds=3",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(rows(folder, "algorithm")) == 3
    done = run(
        folder,
        "-c",
        """
from lambda_actor.spaces import Spaces
from runtime.experiment.schema import add_kind
from runtime.learner import LearnerSpec
from runtime.learner.functions.messages import spec_of, spec_values
from runtime.experiment.algorithm import ALGORITHMS
add_kind("a2c_settings:A2cSettings")
for kind in ("ppo", "a2c_settings:A2cSettings"):
    spec = LearnerSpec(ALGORITHMS.choose({"kind": kind}), Spaces((1,), action_count=2), "mlp", 0)
    assert spec_values(spec)["algorithm"]["kind"] == kind
    assert spec_of(spec_values(spec)) == spec
""",
    )
    assert done.returncode == 0, done.stderr


def test_a_run_names_no_code_unless_it_is_trusted(folder: Path) -> None:
    refused = run(folder, "-m", "runtime", "evaluate", "scaler", "--episodes", "1")
    assert (
        refused.returncode,
        "'momentum:MomentumSettings' of a run is code" in refused.stderr,
    ) == (2, True)
    trusted = run(folder, "-m", "runtime", "evaluate", "scaler", "--episodes", "1", "--trust")
    assert trusted.returncode == 0, trusted.stderr
    compared = run(folder, "-X", "importtime", "-m", "runtime", "report", "scaler", "fleet")
    assert compared.returncode == 0, compared.stderr
    assert "momentum:MomentumSettings" in (folder / "report.html").read_text()
    assert " momentum\n" not in compared.stderr
