"""Wrong experiment files: each is refused in lines that name the key, its value and what is allowed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.cli.explain import explained
from runtime.errors import ExperimentError
from runtime.experiment.loading import experiment_from_tree, load_experiment
from runtime.experiment.scaler import SCALERS
from tests.experiment.trees import CANDIDATES, FIELDS, LEAVES, MINIMAL, is_valid, tree_with

CASES = yaml.safe_load(Path(__file__).with_name("refusals.yaml").read_text())
BESIDE = "environment: {id: Hopper-v5}\nbudget: {usd: 1}\n"
SECRET = "tooth-brush"


def refusal(tree: Any) -> str:
    with pytest.raises(ExperimentError) as caught:
        experiment_from_tree(tree, source="x.yaml")
    return str(caught.value)


@pytest.mark.parametrize(
    "case", CASES, ids=lambda case: str([case.get("beside", ""), *case.get("set", [])])[:60]
)
def test_a_wrong_file_is_refused_in_these_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: dict[str, Any]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("x.yaml").write_text(case.get("file", BESIDE + case.get("beside", "")))
    with pytest.raises(ExperimentError) as caught:
        load_experiment(Path("x.yaml"), case.get("set", []))
    assert str(caught.value) == case["says"]
    assert SECRET not in str(caught.value)


def test_a_file_that_is_no_text_or_too_deep_is_refused_by_its_name(tmp_path: Path) -> None:
    for raw in (b"\x00\x01\x02", b"\xff\xfe\x00\xd8", b"{a: " * 5000):
        (path := tmp_path / "x.yaml").write_bytes(raw)
        with pytest.raises(ExperimentError, match=str(path)):
            load_experiment(path)


def test_a_value_is_shown_without_its_password_even_if_it_is_cut_before_the_server() -> None:
    text = refusal(tree_with("cache.url", [f"redis://me:{SECRET}{100 * 'x'}@host"]))
    assert "cache.url = ***@host" in text and SECRET not in text


def test_a_missing_file_is_refused_with_the_name_of_one_like_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "experiments").mkdir()
    for path in ("experiments/hopper.yaml", "mine.yaml"):
        (tmp_path / path).write_text("seed: 1")
    monkeypatch.chdir(tmp_path)
    for name, meant in {"hopper": "experiments/hopper.yaml", "mine.yml": "mine.yaml"}.items():
        with pytest.raises(ExperimentError, match=f"No such file .*; did you mean {meant}\\?$"):
            load_experiment(Path(name))


@pytest.mark.parametrize("path", LEAVES)
def test_exactly_what_the_schema_allows_is_allowed(path: str) -> None:
    """Any other value is refused, in a line that names it."""
    for value in (*CANDIDATES, float("nan"), object()):
        tree = tree_with(path, value)
        if value in CANDIDATES and is_valid(tree):
            try:
                experiment_from_tree(tree, source="x")
            except ExperimentError as error:
                # Values may contradict each other.
                assert f"{path} = {value!r} is not allowed" not in str(error)
            continue
        text = refusal(tree)
        shown = "null" if value is None else repr(value)[:97]
        assert f"{path} = {shown}" in text and "; allowed: " in text


JUNK = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.dates()
)
KEYS = st.sampled_from(sorted({part for path in FIELDS for part in path.split(".")})) | JUNK
ANYTHING = st.recursive(
    JUNK,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=8,
)


@settings(max_examples=60)
@given(
    tree=st.dictionaries(KEYS, ANYTHING, max_size=5),
    replaced=st.dictionaries(st.sampled_from(sorted(FIELDS)), ANYTHING, max_size=2),
)
def test_any_tree_is_accepted_or_refused_in_words(
    tree: dict[Any, Any], replaced: dict[str, Any]
) -> None:
    tree = MINIMAL | tree
    for path, value in replaced.items():
        section, _, key = path.partition(".")
        before = tree.get(section)
        tree[section] = (
            (before if isinstance(before, dict) else {}) | {key: value} if key else value
        )
    try:
        experiment = experiment_from_tree(tree, source="x.yaml")
    except ExperimentError as error:
        assert len(str(error).splitlines()) >= 2
    else:
        assert isinstance(experiment.resolved().to_yaml(), str)


OWN_KIND = """
from nitro_rl import ScalerSettings
from runtime.experiment.section import Field, Json, Section
class Tuning(Section):
    gain: float = Field(description="the gain")
class Settings(ScalerSettings):
    tuning: Tuning = Field(description="how it is tuned")
    notes: Json = Field(None, description="anything")
"""


def test_keys_of_a_kind_of_ones_own_are_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_kind.py").write_text(OWN_KIND)
    (tmp_path / "leaves.py").write_text("raise SystemExit(0)\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(SCALERS, "settings", dict(SCALERS.settings))
    tuned = {"tuning": {"gain": 1}, "notes": float("nan")}
    for keys, said in (
        ({}, "scaler.tuning is missing: how it is tuned"),
        ({"tuning": {"gain": "a"}}, "scaler.tuning.gain = 'a' is not allowed: Input should be a "),
        ({"tuning": 3}, "scaler.tuning = 3 is not allowed; allowed: a section of keys: gain"),
        (tuned, "scaler.notes = nan is not allowed; allowed: a JSON value"),
    ):
        assert f"  {said}" in refusal(MINIMAL | {"scaler": {"kind": "own_kind:Settings"} | keys})
    assert "scaler.notes" in "\n".join(explained("scaler"))
    assert "cannot be imported: SystemExit: 0" in refusal(tree_with("scaler.kind", "leaves:Own"))
