"""IAM's decision for one request, as far as the templates use its language."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

Context = Mapping[str, tuple[str, ...]]
"""Condition keys of a request, with their values."""


@dataclass(frozen=True)
class Request:
    """One call, as IAM sees it.

    Attributes:
        action: Such as ``s3:GetObject``.
        resource: An ARN, or ``*``.
        context: Condition keys.
    """

    action: str
    resource: str = "*"
    context: Context = field(default_factory=dict)


@dataclass(frozen=True)
class Statement:
    """A statement of a policy, with all references resolved."""

    sid: str
    effect: str
    actions: tuple[str, ...]
    resources: tuple[str, ...]
    conditions: tuple[tuple[str, str, tuple[str, ...]], ...] = ()
    """Operator, key, values."""

    def covers(self, request: Request, *, with_conditions: bool = True) -> bool:
        return (
            any(matches(action, request.action) for action in self.actions)
            and any(matches(resource, request.resource) for resource in self.resources)
            and (
                not with_conditions
                or all(_holds(*condition, request.context) for condition in self.conditions)
            )
        )

    def without_action(self, action: str) -> Statement:
        return replace(self, actions=tuple(one for one in self.actions if one != action))

    def without_resource(self, resource: str) -> Statement:
        return replace(self, resources=tuple(one for one in self.resources if one != resource))


def is_allowed(statements: Iterable[Statement], request: Request) -> bool:
    """Whether an Allow covers the request and no Deny does."""
    effects = {statement.effect for statement in statements if statement.covers(request)}
    return effects == {"Allow"}


def read_statement(written: Mapping[str, Any], resolve: Callable[[Any], str]) -> Statement:
    """Reads a statement of a template.

    Args:
        written: The statement with its intrinsic functions.
        resolve: Converts a value to text.
    """

    def texts(value: Any) -> tuple[str, ...]:
        return tuple(map(resolve, value if isinstance(value, list) else [value]))

    assert written.keys() <= {"Sid", "Effect", "Action", "Resource", "Condition", "Principal"}, (
        written.keys()
    )
    conditions = [
        (operator, key, texts(values))
        for operator, keys in written.get("Condition", {}).items()
        for key, values in keys.items()
    ]
    return Statement(
        written.get("Sid", ""),
        written["Effect"],
        texts(written["Action"]),
        texts(written["Resource"]),
        tuple(conditions),
    )


def _holds(operator: str, key: str, values: Sequence[str], context: Context) -> bool:
    """IAM User Guide, "Condition operators" and "Multivalued context keys".

    Raises:
        KeyError: The operator is not known here.
    """
    found = context.get(key)
    if operator == "Null":
        return (values[0] == "true") == (found is None)
    quantifier, _, plain = operator.rpartition(":")
    is_optional = plain.endswith("IfExists")
    compare = _OPERATORS[plain.removesuffix("IfExists")]
    if found is None:
        return is_optional or quantifier == "ForAllValues"
    matches = [any(compare(value, one) for value in values) for one in found]
    return all(matches) if quantifier == "ForAllValues" else any(matches)


def matches(pattern: str, text: str) -> bool:
    """Whether a text matches a pattern with IAM's wildcards."""
    if "*" not in pattern and "?" not in pattern:
        return pattern == text
    return _compiled(pattern).fullmatch(text) is not None


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(re.escape(pattern).replace(r"\*", ".*").replace(r"\?", "."), re.DOTALL)


_OPERATORS: dict[str, Callable[[str, str], bool]] = {
    "StringEquals": str.__eq__,
    "StringLike": matches,
    "ArnEquals": matches,
    "ArnLike": matches,
    "NumericLessThanEquals": lambda most, one: float(one) <= float(most),
    "Bool": str.__eq__,
}
