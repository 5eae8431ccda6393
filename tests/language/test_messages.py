"""What a message says to do about a slip that the language itself cannot name."""

from __future__ import annotations

import pytest

from tests.support import plan_text, run_text


def errors(**parts: str) -> list[str]:
    """The line of every fault of PARTS with some replaced, without its place."""
    _, report = plan_text(run_text(**parts))
    return [f"{e.code.name} {e.message} ({e.hint})" for e in report.errors]


@pytest.mark.parametrize("call", ["(* 2.0 {})", "(+ (getf inputs :x) {})", "(max {} 1)", "(exp {})"])
def test_a_key_that_is_not_there_is_what_made_a_nil(call: str) -> None:
    text = errors(objective=f"(defobjective (inputs ctx) (mean {call.format('(getf inputs :xx)')}))")
    name = call[1:].split()[0]
    assert text == [f"E-TYPE-004 {name} needs a tensor, not nil (getf gives nil for a key that is not there)"]
