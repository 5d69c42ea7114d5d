"""The variables passed to a deployed learner, and the names that a deployment may have."""

from __future__ import annotations

from dataclasses import asdict, fields

import pytest

from runtime.aws.learner.deployment import Deployment
from runtime.errors import ExperimentError
from runtime.names import experiment_name, run_name

NAMES = [field.name for field in fields(Deployment)]
VALUES = {name: f"the {name}" for name in NAMES} | {
    "provisioned": "3",
    "billed_since": "1700000000",
    "tail_usd": "0.09",
}
WHOLE = {f"NITRO_{name.upper()}": value for name, value in VALUES.items()}


def test_what_is_empty_is_told_too():
    assert Deployment.from_environment(WHOLE | {"NITRO_CACHE_URL": ""}).cache_url == ""


@pytest.mark.parametrize("name", NAMES)
def test_a_deployment_described_in_part_is_refused_unless_the_rest_is_found(name: str):
    variable = f"NITRO_{name.upper()}"
    part = {key: value for key, value in WHOLE.items() if key != variable}
    with pytest.raises(ExperimentError) as caught:
        Deployment.from_environment(part)
    assert str(caught.value).startswith(f"the variables {variable} are not set, ")
    assert asdict(Deployment.from_environment(part, **{name: VALUES[name]})) == VALUES


def test_all_that_is_missing_is_named():
    with pytest.raises(ExperimentError) as caught:
        Deployment.from_environment({"NITRO_ACTOR_FUNCTION": "arn"})
    assert all(
        (variable in str(caught.value)) == (variable != "NITRO_ACTOR_FUNCTION")
        for variable in WHOLE
    )


@pytest.mark.parametrize(
    ("stem", "name"),
    [
        ("hopper", "hopper"),
        ("hopper-ppo", "hopper-ppo"),
        ("Hopper_v5.final", "hopper-v5-final"),
        ("a", "a"),
        ("hopper--ppo__2", "hopper-ppo-2"),
        ("_hopper_", "hopper"),
        ("a" * 40, "a" * 40),
        ("hopper ", "hopper"),
        ("caf\u00e9", "caf"),
        ("a" + "-" * 50 + "b", "a-b"),
    ],
)
def test_an_experiment_is_deployed_under_its_files_name(stem: str, name: str):
    assert experiment_name(stem) == name
    assert experiment_name(name) == name


@pytest.mark.parametrize(
    "stem", ["", "-", "___", "5hopper", "-5", "a" * 41, "\u00fc", "\u0661", "\n"]
)
def test_a_stem_that_cannot_name_a_stack_is_refused(stem: str):
    with pytest.raises(ExperimentError, match="beginning with a letter, at most 40") as caught:
        experiment_name(stem)
    assert repr(stem) in str(caught.value)


@pytest.mark.parametrize("name", ["a", "1", "20261120-195156", "seed-3", "x" * 40])
def test_names_that_a_run_may_have(name: str):
    assert run_name(name) == name


@pytest.mark.parametrize(
    "name", ["", "x" * 41, "-x", "Seed", "a_b", "a/b", "..", "a b", "a\n", "\u0661", "\u00e9"]
)
def test_names_that_a_run_may_not_have(name: str):
    with pytest.raises(
        ExperimentError, match="1 to 40 lower-case letters, digits and dashes"
    ) as caught:
        run_name(name)
    assert repr(name) in str(caught.value)
