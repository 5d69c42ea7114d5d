"""Printed output is limited to a few lines."""

from __future__ import annotations

import sys

import pytest

from lambda_actor.output import limited_output


def test_what_is_printed_ends_at_the_limit_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ZeroDivisionError), limited_output(20):
        print("0123456789")
        print("error", file=sys.stderr)
        print("abcdefghij", end="")
        raise ZeroDivisionError
    assert tuple(capsys.readouterr()) == (
        "0123456789\nabc",
        "error\n\n7 more characters were printed and dropped\n",
    )
    print("afterwards")
    assert capsys.readouterr().out == "afterwards\n"
