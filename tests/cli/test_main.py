"""The command line: help is short, and requests are answered or refused with the nearest name."""

from __future__ import annotations

import os
import shlex
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from runtime.cli.arguments import launcher
from runtime.cli.main import main
from runtime.experiment.explaining import section_of, walk_fields
from runtime.training.run import RunResult

NEEDS = {
    "train": "EXPERIMENT.yaml",
    "plan": "EXPERIMENT.yaml",
    "evaluate": "DIR",
    "export": "DIR --onnx FILE",
    "report": "DIR [DIR ...]",
    "explain": "[KEY]",
    "status": "[EXPERIMENT]",
    "logs": "EXPERIMENT",
    "results": "EXPERIMENT",
    "stop": "EXPERIMENT",
}


def said(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    """Returns a command's output; fails the test if the exit code differs."""
    try:
        ended = main(arguments)
    except SystemExit as end:
        ended = end.code
    assert ended == code
    printed = capsys.readouterr()
    return printed.err if code else printed.out


@pytest.mark.parametrize(
    ("words", "end"),
    [
        ("explain scaler.actors_mim", " is not a known key; did you mean scaler.actors_min?"),
        ("explain extend", " is not a known key; did you mean extends?"),
        ("train a.yaml --resume", "name the run's directory: train --out DIR --resume"),
        ("train --resume", "name the run's directory: train --out DIR --resume"),
        ("train --out runs/none", "to continue a run without it: train --out DIR --resume"),
        ("train experiments", "continue the run there: train --out experiments --resume"),
        (
            "train --out runs/none --resume",
            "to begin one there, name an experiment file: train EXPERIMENT.yaml --out runs/none --resume",
        ),
        ("stop", "stop what? Name an experiment, or a stack with --stack NAME"),
        ("stop --stack Mine", "allowed: names that begin with Nitro"),
    ],
)
def test_what_is_mistyped_is_refused_with_the_nearest(
    capsys: pytest.CaptureFixture[str], words: str, end: str
) -> None:
    assert said(capsys, *words.split(), code=2).strip().endswith(end)


def test_a_run_here_is_none_in_aws(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "config.yaml").touch()
    assert "Ctrl-C stops a run here" in said(capsys, "stop", str(tmp_path), code=2)


def test_what_is_refused_steers_no_terminal(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Errors may quote text from a downloaded run's files."""
    (path := tmp_path / "a.yaml").write_text('"\\e[2Jkey": 1\n')
    text = said(capsys, "plan", str(path), code=2)
    assert "?[2Jkey is not a known key" in text and "\x1b" not in text


def test_help_is_short_and_begins_with_what_is_required(capsys: pytest.CaptureFixture[str]) -> None:
    for command, needs in NEEDS.items():
        text = said(capsys, command, "--help")
        assert text.startswith(f"usage: python -m runtime {command} {needs}")
        examples = text.partition("examples:\n")[2].partition("\n\n")[0].splitlines()
        assert examples and all(line.startswith("  python -m runtime ") for line in examples)
        assert len(text.splitlines()) <= 60
    text = said(capsys, "--help")
    places = [text.index(word) for word in ("examples:", "environment.id and budget.usd", "train ")]
    assert places[:2] == sorted(places[:2])
    assert [command for command in NEEDS if f"\n    {command} " not in text] == []


def test_explain_tells_every_key_or_one(capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, "explain")
    assert text.startswith("required keys; all others have defaults:\n  environment.id ")
    lines = text.splitlines()
    for key in walk_fields():
        if section_of(key.info) is None:
            at = lines.index(f"  {key.name}")
            assert lines[at + 1].strip() == key.info.description
            assert "allowed: " in lines[at + 2]
        else:
            assert f"{key.path}: {key.info.description}" in lines
    assert said(capsys, "explain", "scaler.window_rounds") == (
        "  scaler.window_rounds (nitro)\n"
        "      n, rounds whose convexity ratios are compared\n"
        "      default: 6; allowed: a whole number from 1\n"
    )
    assert "      required; allowed: non-empty text" in said(capsys, "explain", "environment.id")
    assert "another experiment file" in said(capsys, "explain", "extends")


def test_whoever_reads_a_part_gets_no_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as closed:
        monkeypatch.setattr(sys, "stdout", closed)
        assert main(["explain"]) == 141
    assert capsys.readouterr().err == ""


def test_what_goes_on_with_an_interrupted_run_can_be_pasted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for called, found in {
        "runtime/__main__.py": [sys.executable, "-m", "runtime"],
        "bin/nitro-rl": ["bin/nitro-rl"],
    }.items():
        monkeypatch.setattr(sys, "argv", [called, "train", "an experiment.yaml"])
        assert launcher() == found

    def interrupted(*_arguments: Any, **_options: Any) -> RunResult:
        return RunResult(summary, 130)

    summary = defaultdict(int) | {
        "stop_reason": "interrupted",
        "error": None,
        "evaluation_return_mean": None,
        "evaluation_round_best": None,
    }
    monkeypatch.setattr("runtime.training.run.train", interrupted)
    file = tmp_path / "my experiment.yaml"
    file.write_text("environment: {id: CartPole-v1}\nbudget: {usd: 1.0}\n")
    words = ["train", str(file), "--set", "stop.max_rounds=3", "--set", "environment.kwargs={a: 1}"]
    words += ["--out", str(tmp_path / "out"), "--trust"]
    assert main(words) == 130
    command = capsys.readouterr().out.splitlines()[-1]
    assert shlex.split(command) == ["python", "-m", "runtime", *words, "--resume"]
    main(shlex.split(command)[3:])
    assert capsys.readouterr().out.splitlines()[-1] == command
