"""A mask that is drawn in every step and is the same in each: no fault, and hardly meant."""

from __future__ import annotations

from typing import Any

from ..graph.core import Graph, Value
from ..language import codes
from ..language.diagnostics import UserError
from ..language.source import Span
from ..ops import Op
from .builtin_table import Tracer

FIXED = (("seed", ""), ("ctx", "microbatch"))  # inputs that are the same in every step


def check_mask(t: Tracer, row: Op, given: dict[str, Any], span: Span) -> None:
    """W-DRAW-001 for a mask of training or of the generator whose salt no step changes. ``given``: its arguments."""
    drawn = row.mask and given.get("rate") != 0 and not t.builder.evaluating
    if drawn and (t.form == "train" or t.form.startswith("generate.")) and not changes(t, given["salt"]):
        how = "without a :salt" if given["salt"] is None else "with a :salt that does not change"
        what = f"{row.name} {how} draws the same mask in every step"
        t.world.report.warn(UserError(codes.WARN_MASK, span, what, hint=":salt (getf ctx :step) draws another in each"))


def changes(t: Tracer, salt: Any) -> bool:
    """Is ``salt`` made of an input that changes from step to step?"""
    if not isinstance(salt, Value):
        return False
    reached = set(Graph("", (), (("", salt),)).values())
    return any(value in reached and key not in FIXED for key, value in t.inputs.items())
