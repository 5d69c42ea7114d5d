"""The command line: help is short, and requests are answered or refused with the nearest name."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from runtime.cli.arguments import launcher
from runtime.cli.main import main
from runtime.experiment.explaining import section_of, walk_fields
from runtime.training.run import RunResult
from tests.helpers import ROOT


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
    ("words", "meant"), [(["trian"], "train"), (["evalute", "runs/a"], "evaluate")]
)
def test_a_mistyped_command_is_refused_with_the_nearest(
    capsys: pytest.CaptureFixture[str], words: list[str], meant: str
) -> None:
    assert said(capsys, *words, code=2).strip().endswith(f"; did you mean {meant}?")
    assert "did you mean" not in said(capsys, "qqqqqqqq", code=2)


def test_what_is_refused_steers_no_terminal(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Errors may quote text from a downloaded run's files."""
    path = tmp_path / "a.yaml"
    path.write_text('environment: {id: CartPole-v1}\nbudget: {usd: 1.0}\n"\\e[2Jkey": 1\n')
    text = said(capsys, "plan", str(path), code=2)
    assert "?[2Jkey is not a known key" in text and "\x1b" not in text


@pytest.mark.parametrize(
    "arguments",
    [
        # Refused for other reasons after they are read.
        ("train", "--set", "budget.usd=0.000001"),
        ("plan", "--set", "cache.kind=redis"),
    ],
)
def test_what_a_file_says_of_an_instance_that_there_is_not_is_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    command, *settings = arguments
    out = ["--out", str(tmp_path)] if command == "train" else []
    file = tmp_path / "c7i.yaml"
    file.write_text(
        f"extends: {ROOT / 'experiments' / 'hopper.yaml'}\nlearner: {{instance_types: [c7i.large]}}\n"
    )
    everything = [command, str(file), *out, *settings]
    assert main([*everything, "--set", "learner.kind=stellaris"]) == 2
    assert (
        "not used     learner.instance_types (learner.kind = stellaris)\n"
        in capsys.readouterr().out
    )
    main([*everything, "--set", "learner.kind=function", "--set", "fleet.kind=ray"])
    assert "not used" not in capsys.readouterr().out


def test_help_of_train_fits_a_screen_or_two_and_says_first_what_is_required(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = said(capsys, "train", "--help")
    assert len(text.splitlines()) <= 60
    places = [
        text.index(word)
        for word in ("environment.id and budget.usd", "examples:", "positional arguments")
    ]
    assert places == sorted(places)
    assert "explain" in text


@pytest.mark.parametrize(
    ("command", "needs"),
    [
        ("train", "EXPERIMENT.yaml"),
        ("plan", "EXPERIMENT.yaml"),
        ("evaluate", "DIR"),
        ("export", "DIR --onnx FILE"),
        ("report", "DIR [DIR ...]"),
        ("explain", "[KEY]"),
        ("status", "[EXPERIMENT]"),
        ("logs", "EXPERIMENT"),
        ("results", "EXPERIMENT"),
        ("stop", "EXPERIMENT"),
    ],
)
def test_help_begins_with_what_is_required_and_has_examples(
    capsys: pytest.CaptureFixture[str], command: str, needs: str
) -> None:
    text = said(capsys, *command.split(), "--help")
    assert text.startswith(f"usage: python -m runtime {command} {needs}")
    examples = text.partition("examples:\n")[2].partition("\n\n")[0].splitlines()
    assert examples and all(line.startswith("  python -m runtime ") for line in examples)


def test_help_names_all_commands_and_the_required_keys(capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, "--help")
    places = [
        text.index(word)
        for word in ("examples:", "environment.id and budget.usd are required", "\n    train ")
    ]
    assert places == sorted(places)
    assert said(capsys, "explain").startswith(
        "required keys; all others have defaults:\n  environment.id "
    )


def test_explain_tells_every_key(capsys: pytest.CaptureFixture[str]) -> None:
    lines = said(capsys, "explain").splitlines()
    for key in walk_fields():
        path, info = key.path, key.info
        if section_of(info) is None:
            at = lines.index(f"  {key.name}")
            assert lines[at + 1].strip() == info.description
            assert "allowed: " in lines[at + 2]
        else:
            assert f"{path}: {info.description}" in lines


def test_explain_tells_one_key(capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, "explain", "scaler.window_rounds").split("\n") == [
        "  scaler.window_rounds (nitro)",
        "      n, rounds whose convexity ratios are compared",
        "      default: 6; allowed: a whole number from 1",
        "",
    ]
    assert "      required; allowed: non-empty text" in said(capsys, "explain", "environment.id")
    assert "another experiment file" in said(capsys, "explain", "extends")


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("scaler.actors_mim", "scaler.actors_min"),
        ("skaler", "scaler"),
        ("extend", "extends"),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest_name(
    capsys: pytest.CaptureFixture[str], key: str, nearest: str
) -> None:
    assert said(capsys, "explain", key, code=2) == (
        f"error: {key} is not a known key; did you mean {nearest}?\n"
    )


def test_whoever_reads_a_part_gets_no_error() -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as closed:
        done = subprocess.run(
            [sys.executable, "-m", "runtime", "explain"],
            cwd=ROOT,
            stdout=closed,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert (done.returncode, done.stderr) == (141, "")


def test_the_program_is_named_as_it_can_be_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    for called, found in {
        "runtime/__main__.py": [sys.executable, "-m", "runtime"],
        "bin/nitro-rl": ["bin/nitro-rl"],
    }.items():
        monkeypatch.setattr(sys, "argv", [called, "train", "an experiment.yaml"])
        assert launcher() == found


def test_what_goes_on_with_an_interrupted_run_can_be_pasted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_arguments: Any, **_options: Any) -> RunResult:
        return RunResult(summary, 130)

    summary = defaultdict(int) | {
        "stop_reason": "interrupted",
        "error": None,
        "evaluation_return_mean": None,
        "evaluation_round_best": None,
    }
    monkeypatch.setattr("runtime.training.run.train", interrupted)
    file, out = tmp_path / "my experiment.yaml", tmp_path / "out"
    file.write_text("environment: {id: CartPole-v1}\nbudget: {usd: 1.0}\n")
    words = ["train", str(file), "--set", "stop.max_rounds=3", "--set", "environment.kwargs={a: 1}"]
    assert main([*words, "--out", str(out), "--trust"]) == 130
    command = capsys.readouterr().out.splitlines()[-1]
    assert shlex.split(command) == [
        "python",
        "-m",
        "runtime",
        *words,
        "--out",
        str(out),
        "--trust",
        "--resume",
    ]
    main(shlex.split(command)[3:])
    assert capsys.readouterr().out.splitlines()[-1] == command
