"""Text that machines read otherwise than people: YAML 1.1, and terminals without UTF-8."""

from __future__ import annotations

import argparse
import io
import sys

import pytest
import yaml

from runtime.cli.main import run_command
from runtime.experiment import yaml_text
from runtime.experiment.loading import changed_keys

AS_WRITTEN = {
    "no": "no",
    "on": "on",
    "0777": "0777",
    "1:30": "1:30",
    "1:30.5": "1:30.5",
    "2026-11-01": "2026-11-01",
    "0b11": "0b11",
    "true": True,
    "~": None,
    "": None,
    "1e-4": 1e-4,
    "1_000e-3": 1.0,
    ".2": 0.2,
    "-.5e3": -500.0,
    "2.": 2.0,
    "-17": -17,
    "1_000": 1000,
    "0x1F": 31,
    "0": 0,
    "-.inf": float("-inf"),
}


@pytest.mark.parametrize(("text", "value"), AS_WRITTEN.items())
def test_a_word_is_what_it_looks_like(text: str, value: object) -> None:
    """LlamaFactory #4014, HyperPyYAML #12: in files, in --set and as keys."""
    assert yaml_text.parse(f"key: {text}", "x.yaml") == {"key": value}
    assert changed_keys([f"environment.kwargs={{a: {text}}}"]) == {
        "environment": {"kwargs": {"a": value}}
    }
    if isinstance(value, str):
        assert yaml_text.parse(f"{text}: 1", "x.yaml") == {text: 1}
    dumped = yaml_text.dump({"key": value})
    assert yaml_text.parse(dumped, "x.yaml") == {"key": value}
    assert yaml.safe_load(dumped) == {"key": value}, "for other readers too"


def test_without_utf_8_dashes_and_arrows_are_ascii(monkeypatch: pytest.MonkeyPatch) -> None:
    """DVC #5591: a C locale."""
    output = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(output, encoding="ascii"))
    parser = argparse.ArgumentParser()
    parser.set_defaults(command=lambda options: print("– 3 × −2 ± 1 → … ξ") or 0)
    assert run_command(parser, []) == 0
    assert output.getvalue() == b"- 3 x -2 +- 1 -> ... ?\n"
