"""The records that come with the package: they are of the examples' kernels, and each has the rules' bits."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import attrs
import pytest

pytest.importorskip("tvm")

import schedules
from lowering.math import elementary
from schedules.tuning import records
from schedules.tuning.measure import arguments, inputs
from sexpgpu.build.targets import rates_named
from sexpgpu.build.tuner import wanted_programs
from sexpgpu.cli.commands import plan_of
from sexpgpu.language.diagnostics import Report
from sexpgpu.planning.microbatch_stacking import stacked
from tests.schedules.tensor_programs import V3, build, runs_here
from tests.schedules.tuning.test_replay import compiled

pytestmark = pytest.mark.build

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
TUNED = ("route-planner",)  # examples that have records
TARGET = attrs.evolve(schedules.TARGETS[V3], functions=elementary.STEPS)


@functools.cache
def programs(example: str) -> dict[str, Any]:
    plan = plan_of(str(EXAMPLES / example / "run.sx"), Report())
    found = wanted_programs(stacked(plan, None, rates_named(V3).values()), None)
    return {records.key_of(func): func for func in found.values()}


def shipped() -> dict[str, records.Record]:
    return dict(records.load(records.SHIPPED, V3).by_key)


def cases() -> list[tuple[Any, records.Record]]:
    """Every shipped record, with its kernel."""
    known = {key: func for example in TUNED for key, func in programs(example).items()}
    return [(known[key], record) for key, record in shipped().items() if key in known]


def test_every_record_is_of_a_kernel_of_an_example() -> None:
    found = [record for _, record in cases()]
    assert found and len(found) == len(shipped())


@pytest.mark.skipif(not runs_here(V3), reason="this CPU has no AVX2")
def test_every_record_has_the_rules_bits() -> None:
    for func, record in cases():
        wanted = arguments(func)
        tuned, rules = compiled(records.scheduled(func, record.trace, TARGET)), build(records.canonical(func))
        for fill in (0, 1):
            given = [x for n, x in enumerate(inputs(wanted, fill)) if n not in wanted.written]
            assert wanted.written == tuple(range(len(given), len(wanted.params))), record.kernel
            outputs = ([out.tobytes() for out in one.run(*given)] for one in (tuned, rules))
            assert len({tuple(out) for out in outputs}) == 1, record.kernel
