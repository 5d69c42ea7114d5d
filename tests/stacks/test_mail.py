"""The guard's mail."""

from __future__ import annotations

import pytest

from runtime.errors import ExperimentError
from stacks.mail import checked_address
from tests.stacks.conftest import Assembly, Synthesise, flat

STACK, ADDRESS = "NitroMail", "me+nitro@example.org"


@pytest.fixture(scope="module")
def made(synthesise: Synthesise) -> Assembly:
    return synthesise(context={"mail": ADDRESS})


def test_somebody_hears_of_the_guard(made: Assembly) -> None:
    subscribed = made.only("AWS::SNS::Subscription", STACK)
    assert flat(subscribed.pop("TopicArn")).startswith("<NitroGuard:")
    assert subscribed == {"Endpoint": ADDRESS, "Protocol": "email"}
    assert len(made.template(STACK)["Resources"]) == 1, (
        "CloudFormation has AWS Budgets in half of the regions only"
    )


def test_without_an_address_nothing_of_that_is_made_or_taken_away(serverless: Assembly) -> None:
    assert not (serverless.directory / f"{STACK}.template.json").exists()
    assert serverless.resources("AWS::SNS::Subscription", "NitroGuard") == {}


def test_the_guard_is_the_same_with_and_without_it(made: Assembly, serverless: Assembly) -> None:
    assert made.template("NitroGuard") == serverless.template("NitroGuard")


@pytest.mark.parametrize(
    "text",
    ["", "me", "me@here", "me@x.org,you@x.org", "Me <me@x.org>", "m\u00e9@x.org", 5, ["me@x.org"]],
    ids=str,
)
def test_what_is_no_address_is_refused(text: object) -> None:
    with pytest.raises(
        ExperimentError, match="^mail = .* is not allowed; allowed: one address such as you@"
    ):
        checked_address(text)


def test_the_guides_example_is_nobodys_address() -> None:
    with pytest.raises(
        ExperimentError, match="^mail = 'YOU@EXAMPLE.ORG' is the guide's example; allowed: "
    ):
        checked_address("YOU@EXAMPLE.ORG")
