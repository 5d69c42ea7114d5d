"""``python app.py``. Its output, and that the CDK's command line writes the same, is tested in test_deploy.py."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from runtime.errors import ExperimentError
from stacks.assembly import make_app
from stacks.plan import Plan
from tests.helpers import ROOT
from tests.stacks.conftest import SETTINGS
from tests.test_imports import imports, loaded_after

_REFUSED = """
import contextlib, io, runpy
with contextlib.redirect_stdout(io.StringIO()) as printed, contextlib.redirect_stderr(io.StringIO()) as told:
    try:
        runpy.run_path("app.py", run_name="__main__")
    except SystemExit as leaving:
        assert leaving.code == 1
assert (printed.getvalue(), told.getvalue()) == ("", "none.yaml: cannot be read: No such file or directory\\n")
"""


def test_a_refusal_is_one_line_and_leaves_nothing_and_stacks_load_no_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CDK_OUTDIR", str(tmp_path / "out"))
    monkeypatch.setenv("CDK_CONTEXT_JSON", '{"experiment": "none.yaml"}')
    loaded = loaded_after(_REFUSED)
    assert not list(tmp_path.glob("out/*"))
    assert {"aws_cdk", "stacks", "runtime"} <= loaded
    assert "torch" not in loaded


def test_without_a_word_it_is_the_first_example() -> None:
    """So that ``npx cdk deploy --all`` needs no arguments."""
    assert SETTINGS["experiment"] == "experiments/hopper.yaml"
    with pytest.raises(
        ExperimentError, match=r"^which experiment\? Name its file: -c experiment=FILE.yaml$"
    ):
        make_app({**SETTINGS, "experiment": ""})


def test_every_file_of_the_papers_can_be_deployed() -> None:
    paths = sorted((ROOT / "experiments/paper").glob("*.yaml"))
    assert len(paths) == 13
    for path in paths:
        assert Plan.from_context({"experiment": str(path)}.get).processor == "x86_64"


def test_cdk_json_makes_no_metadata_that_python_alone_would_not() -> None:
    settings = json.loads((ROOT / "cdk.json").read_text())
    assert settings["app"] == "python3 app.py"
    assert [settings[key] for key in ("versionReporting", "pathMetadata", "assetMetadata")] == [
        False
    ] * 3
    assert settings["context"]["@aws-cdk/aws-ec2:restrictDefaultSecurityGroup"] is False


def test_aws_cdk_has_one_door() -> None:
    of_stacks = {"aws_cdk", "constructs", "cdk_nag", "stacks"}
    elsewhere = [
        str(path)
        for folder in ("nitro_rl", "runtime", "lambda_actor")
        for path in (ROOT / folder).rglob("*.py")
        if of_stacks & {found.name for found in imports(path.read_text())}
    ]
    assert elsewhere == []
