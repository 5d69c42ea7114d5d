"""A downloaded run names an environment: code is imported only if the user names it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from lambda_actor import wire
from runtime.cli.main import main
from runtime.errors import ExperimentError
from runtime.records.policy_file import save_policy
from runtime.records.trust import load_file_or_dict
from runtime.show.exported_policy import load_policy
from stacks.plan import Plan
from tests.environments import policy_arrays
from tests.helpers import SMALL_EXPERIMENT

HOSTILE = "hostile_download:make"
KIND = "hostile_download:Settings"
OWN = "tests.environments:make_counter"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A downloaded run that names a module in the current folder, which reports its import."""
    (tmp_path / "hostile_download.py").write_text(
        "import pathlib\npathlib.Path('imported').touch()\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "hostile_download", raising=False)
    directory = tmp_path / "downloaded"
    directory.mkdir()
    (directory / ".download.json").write_text('{"source": "s3://bucket/run/", "files": {}}')
    tree = yaml.safe_load(SMALL_EXPERIMENT) | {"environment": {"id": HOSTILE}}
    (directory / "config.yaml").write_text(yaml.safe_dump(tree))
    weights = wire.encode(wire.Kind.WEIGHTS, policy_arrays(2, 1))
    save_policy(directory / "policy.safetensors", weights, environment_id=HOSTILE)
    return directory


@pytest.mark.parametrize(
    "use",
    [
        pytest.param(lambda run: main(["evaluate", str(run)]), id="evaluate"),
        pytest.param(lambda run: main(["export", str(run), "--onnx", "policy.onnx"]), id="export"),
        pytest.param(
            lambda run: main(["train", "--out", str(run), "--resume"]),
            id="train",
        ),
        pytest.param(load_policy, id="load_policy"),
        pytest.param(
            lambda run: Plan.from_context({"experiment": str(run / "config.yaml")}.get), id="deploy"
        ),
    ],
)
def test_code_that_a_download_names_is_not_imported(
    run: Path, use: Callable[[Path], object], capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        assert use(run) == 2
        said = capsys.readouterr().err
    except ExperimentError as error:
        said = str(error)
    assert f"{HOSTILE!r} of a downloaded run is code" in said and "--environment" in said
    assert not Path("imported").exists() and "hostile_download" not in sys.modules


@pytest.mark.parametrize("section", [{"wrappers": [HOSTILE]}, {"kwargs": {"hostile": True}}])
def test_wrappers_and_arguments_are_code_too(run: Path, section: dict[str, object]) -> None:
    tree = yaml.safe_load(SMALL_EXPERIMENT) | {"environment": {"id": "Pendulum-v1", **section}}
    (run / "config.yaml").write_text(yaml.safe_dump(tree))
    with pytest.raises(
        ExperimentError,
        match=rf"environment.{next(iter(section))} = .* of a downloaded run is code",
    ):
        load_policy(run)
    assert load_policy(run, environment=OWN).environment_id == OWN, (
        "the download's own value is not used"
    )
    assert not Path("imported").exists()


@pytest.mark.parametrize("is_downloaded", [True, False])
def test_code_of_a_run_that_the_user_trusts_or_made_is(run: Path, is_downloaded: bool) -> None:
    if not is_downloaded:
        (run / ".download.json").unlink()
    # It makes no environment.
    assert main(["evaluate", str(run), *["--trust"] * is_downloaded]) == 2
    assert Path("imported").exists()


@pytest.mark.parametrize("kind", ["downloaded run", "run", "seeds"])
def test_callbacks_are_called_of_the_users_own_file_only(
    run: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if kind != "downloaded run":
        (run / ".download.json").unlink()
        (run / ("rounds.jsonl" if kind == "run" else "summary.json")).write_text('{"seeds": [{}]}')
    if kind == "seeds":
        (run / "policy.safetensors").unlink()
    own = yaml.safe_load(SMALL_EXPERIMENT) | {"environment": {"id": "Pendulum-v1"}}
    own["callbacks"] = [HOSTILE]
    (run / "config.yaml").write_text(yaml.safe_dump(own))
    resume = ["train", "--out", str(run), "--resume"]
    assert main(resume) == 2
    words = "callbacks = ['hostile_download:make'] of a " + kind.replace("seeds", "run")
    assert words in capsys.readouterr().err
    assert not Path("imported").exists()
    assert main([*resume, "--trust"]) == 2
    assert "hostile_download:make cannot be made with {}: AttributeError" in capsys.readouterr().err
    assert Path("imported").exists()


@pytest.mark.parametrize(("section", "is_downloaded"), [("algorithm", True), ("fleet", False)])
def test_no_runs_kinds_are_imported(
    run: Path, section: str, is_downloaded: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = yaml.safe_load(SMALL_EXPERIMENT) | {section: {"kind": KIND}}
    (run / "config.yaml").write_text(yaml.safe_dump(tree))
    if not is_downloaded:
        (run / ".download.json").unlink()
    resume = ["train", "--out", str(run), "--resume"]
    for words in (["evaluate", str(run)], ["export", str(run), "--onnx", "policy.onnx"], resume):
        assert main(words) == 2
        assert f"{section}.kind = {KIND!r} of a run is code" in capsys.readouterr().err
    assert main(["report", str(run)]) == 0
    Path("mine.yaml").write_text(SMALL_EXPERIMENT)
    assert main(["train", "mine.yaml", "--out", str(run), "--resume", "--set", "budget.usd=2"]) == 2
    assert not Path("imported").exists(), "the run names code that the user's own file does not"
    with pytest.raises(ExperimentError, match="cannot be imported: AttributeError"):
        load_policy(run, environment=OWN, trust=True)
    assert Path("imported").exists()


def test_a_download_names_no_other_file(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "config.yaml").write_text(f"extends: {Path('base.yaml').absolute()}\n")
    Path("base.yaml").write_text(SMALL_EXPERIMENT)
    assert main(["evaluate", str(run)]) == 2
    assert "a run's own config.yaml stands for itself" in capsys.readouterr().err


def test_what_a_pool_changes_counts_before_a_file_and_before_a_dict(tmp_path: Path) -> None:
    tree = {"environment": {"id": "Hopper-v5"}, "budget": {"usd": 2.0}}
    (file := tmp_path / "x.yaml").write_text(yaml.safe_dump(tree))
    for given in (tree, file):
        assert load_file_or_dict(given, changes={"budget": {"usd": 0.5}}).budget.usd == 0.5
