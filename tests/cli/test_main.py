"""The command line: what helps is short, and what is asked for is told or refused with the nearest name."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import runtime
from runtime.cli.main import main
from runtime.config.explaining import section_of, walk_fields
from tests.helpers import ROOT


def said(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    """What a command prints; the test fails if it ends with another code."""
    try:
        ended = main(arguments)
    except SystemExit as end:
        ended = end.code
    assert ended == code
    printed = capsys.readouterr()
    return printed.err if code else printed.out


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, "--version").strip() == runtime.__version__


@pytest.mark.parametrize("arguments", [
    # Refused for other reasons, after they have been read.
    ("train", "--set", "budget.usd=0.000001"), ("plan", "--set", "cache.kind=serverless")])
def test_what_a_file_says_of_an_instance_that_there_is_not_is_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    command, *settings = arguments
    out = ["--out", str(tmp_path)] if command == "train" else []
    everything = [command, str(ROOT / "experiments" / "hopper.yaml"), *out, *settings,
                  "--set", "learner.instance_types=[c7i.large]"]
    assert main([*everything, "--set", "learner.kind=stellaris"]) == 2
    assert "not used     learner.instance_types: there is no instance" in capsys.readouterr().out
    main([*everything, "--set", "learner.kind=function", "--set", "fleet.kind=ray"])
    assert "not used" not in capsys.readouterr().out


def test_help_of_train_fits_a_screen_or_two_and_begins_with_examples(capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, "train", "--help")
    assert len(text.splitlines()) <= 60
    places = [text.index(word) for word in ("examples:", "environment.id ", "budget.usd ", "positional arguments")]
    assert places == sorted(places)
    assert "explain" in text


def test_explain_tells_every_key(capsys: pytest.CaptureFixture[str]) -> None:
    lines = said(capsys, "explain").splitlines()
    for path, info in walk_fields():
        if section_of(info) is None:
            at = lines.index(f"  {path}")
            assert lines[at + 1].strip() == info.description
            assert "allowed: " in lines[at + 2]
        else:
            assert f"{path}: {info.description}" in lines


def test_explain_tells_one_key(capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, "explain", "scaler.window_rounds").split("\n") == [
        "  scaler.window_rounds", "      n, rounds whose convexity ratios are compared (nitro)",
        "      default: 6; allowed: a whole number from 1 to 1,000,000,000,000", ""]
    assert "      required; allowed: text" in said(capsys, "explain", "environment.id")
    assert "another experiment file" in said(capsys, "explain", "extends")


def test_explain_tells_a_section_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, "explain", "stop")
    assert text.startswith("stop: when to stop")
    assert [line.strip() for line in text.splitlines() if line.startswith("  ") and line[2] != " "] == [
        "stop.max_rounds", "stop.max_steps", "stop.target_return"]


@pytest.mark.parametrize(("key", "nearest"), [
    ("scaler.actors_mim", "scaler.actors_min"), ("skaler", "scaler"), ("max_rounds", "stop.max_rounds"),
    ("algorithm.ppo.clp", "algorithm.ppo.clip"), ("extend", "extends"), ("cach.kind", "cache.kind"),
    ("cach.nothing", "cache")])
def test_an_unknown_key_is_refused_with_the_nearest_name(
    capsys: pytest.CaptureFixture[str], key: str, nearest: str
) -> None:
    assert said(capsys, "explain", key, code=2) == (
        f"error: {key} is not a known key; did you mean {nearest}?\n")


def test_whoever_reads_a_part_gets_no_error() -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as closed:
        done = subprocess.run([sys.executable, "-m", "runtime", "explain"], cwd=ROOT, stdout=closed,
                              stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (141, "")
