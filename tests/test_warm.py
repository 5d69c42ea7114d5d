"""Frequent starts are warm: each fresh interpreter with an environment takes half a second of a core."""

from __future__ import annotations

from runtime.fleet import ACTOR_VARIABLES
from tests import warm


def test_what_plays_environments_is_forked_and_what_hashes_otherwise_is_not() -> None:
    for variables in (ACTOR_VARIABLES, {}):
        assert not warm.unlike(variables)
    assert warm.unlike({"PYTHONHASHSEED": "1", "PATH": "/bin"}) == {"PYTHONHASHSEED"}
