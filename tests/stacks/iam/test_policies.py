"""IAM's decisions, as the User Guide describes them."""

from __future__ import annotations

import pytest

from tests.stacks.iam.policies import Context, Request, Statement, is_allowed, read_statement

READ = Statement("Read", "Allow", ("s3:GetObject",), ("arn:aws:s3:::b/run/*.json",))


def with_condition(operator: str, key: str, *values: str) -> Statement:
    return Statement("One", "Allow", ("s3:GetObject",), ("*",), ((operator, key, values),))


def test_an_allow_covers_its_actions_on_its_resources_and_a_deny_wins() -> None:
    request = Request("s3:GetObject", "arn:aws:s3:::b/run/one.json")
    assert is_allowed([READ], request)
    assert not is_allowed([READ], Request("s3:PutObject", request.resource))
    for name in ("other/one.json", "run/one", "run/one.json.gz"):
        assert not is_allowed([READ], Request("s3:GetObject", f"arn:aws:s3:::b/{name}")), name
    assert not is_allowed([], request)
    assert not is_allowed([READ, Statement("No", "Deny", ("s3:*",), ("*",))], request)


@pytest.mark.parametrize(
    ("statement", "context", "holds"),
    [
        (with_condition("StringEquals", "k", "a", "b"), {"k": ("b",)}, True),
        (with_condition("StringEquals", "k", "a"), {"k": ("c",)}, False),
        (with_condition("StringEquals", "k", "a"), {}, False),
        (with_condition("StringEqualsIfExists", "k", "a"), {}, True),
        (with_condition("StringLike", "k", "run/*"), {"k": ("run/one",)}, True),
        (with_condition("StringLike", "k", "run/*"), {"k": ("other/one",)}, False),
        (with_condition("ForAllValues:StringEquals", "k", "a", "b"), {"k": ("a", "b")}, True),
        (with_condition("ForAllValues:StringEquals", "k", "a"), {"k": ("a", "b")}, False),
        (with_condition("ForAllValues:StringEquals", "k", "a"), {}, True),
        (with_condition("ForAnyValue:StringEquals", "k", "a"), {"k": ("a", "b")}, True),
        (with_condition("Null", "k", "false"), {"k": ("a",)}, True),
        (with_condition("Null", "k", "false"), {}, False),
        (
            with_condition("ArnEquals", "k", "arn:aws:lambda:*:f"),
            {"k": ("arn:aws:lambda:x:f",)},
            True,
        ),
    ],
)
def test_conditions(statement: Statement, context: Context, holds: bool) -> None:
    assert is_allowed([statement], Request("s3:GetObject", "arn:aws:s3:::b/one", context)) is holds


def test_what_is_not_known_is_an_error() -> None:
    with pytest.raises(KeyError, match="DateLessThan"):
        is_allowed(
            [with_condition("DateLessThan", "k", "2026")],
            Request("s3:GetObject", "x", {"k": ("2025",)}),
        )
    with pytest.raises(AssertionError):
        read_statement({"Effect": "Allow", "NotAction": "s3:*", "Resource": "*"}, str)
