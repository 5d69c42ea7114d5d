"""What makes the tests quick: frequent starts are warm, and the longest files begin first."""

from __future__ import annotations

from runtime.fleet import ACTOR_VARIABLES
from tests import warm
from tests.conftest import LONGEST, SYNTHESIZING
from tests.helpers import ROOT


def test_what_plays_environments_is_forked_and_what_hashes_otherwise_is_not() -> None:
    for variables in (ACTOR_VARIABLES, {}):
        assert not warm.unlike(variables)
    assert warm.unlike({"PYTHONHASHSEED": "1", "PATH": "/bin"}) == {"PYTHONHASHSEED"}


def test_the_files_that_begin_first_exist() -> None:
    for name in (*LONGEST, *SYNTHESIZING):
        assert (ROOT / "tests" / name).exists(), name
