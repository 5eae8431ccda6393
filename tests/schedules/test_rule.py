"""The order of rules, what a crash does, and the table of targets."""

from __future__ import annotations

import pytest

pytest.importorskip("tvm")

import attrs

import schedules
from schedules.cpu import rules
from sexpgpu.build.report import RULE_WIDTH

from .tensor_programs import V3, graph

pytestmark = pytest.mark.build


@attrs.frozen
class Fake:
    name: str
    answer: object

    def apply(self, func, target):
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def target_with(*rules: Fake) -> schedules.Target:
    return attrs.evolve(schedules.TARGETS[V3], rules=rules)


def test_the_first_schedule_wins() -> None:
    done = schedules.first(None, target_with(Fake("a", None), Fake("b", "schedule b"), Fake("c", "schedule c")))
    assert (done.func, done.rule, done.failures) == ("schedule b", "b", ())


def test_a_crash_counts_as_none_and_is_told() -> None:
    done = schedules.first(None, target_with(Fake("bad", ValueError("two\n words")), Fake("good", "schedule")))
    assert done.rule == "good"
    assert done.failures == ("bad: ValueError: two words",)


def test_no_rule() -> None:
    done = schedules.first(None, target_with(Fake("a", None)))
    assert (done.func, done.rule) == (None, "")


def test_targets_name_a_level_and_never_the_builder() -> None:
    for target in schedules.TARGETS.values():
        host = target.tvm["host"] if target.gpu else target.tvm
        assert host["mcpu"] != "native" and host["mtriple"].startswith(target.machine)
    assert "avx512vl" in schedules.TARGETS["cpu-x86-64-v4"].cpu_flags
    assert not any(flag.startswith("avx512") for flag in schedules.TARGETS[V3].cpu_flags)


def test_gpus_of_a_level_share_all_that_a_schedule_may_look_at() -> None:
    gpus = [t for t in schedules.TARGETS.values() if t.gpu is not None]
    for target in gpus:
        least = schedules.TARGETS[target.gpu.level]
        assert (target.tvm, target.rules, target.lanes, target.registers) == (
            least.tvm, least.rules, least.lanes, least.registers
        )  # fmt: skip
        assert least.gpu.capability <= target.gpu.capability
    levels = {t.name: t.gpu.level for t in gpus}
    assert levels["nvidia-h100"] == levels["nvidia-l4"] == levels["nvidia-b200"] == levels["cuda-sm_80"] == "cuda-sm_80"
    assert levels["cuda-sm_75"] == "cuda-sm_75"


@pytest.mark.parametrize(
    ("machine", "names"), [("x86_64", ["cpu-x86-64-v4", "cpu-x86-64-v3"]), ("aarch64", ["cpu-aarch64"])]
)
def test_the_default_follows_from_the_architecture_alone_the_best_first(machine: str, names: list[str]) -> None:
    assert [t.name for t in schedules.default(machine)] == names


def test_a_program_is_planned_once_for_all_rules(monkeypatch) -> None:
    planned = []
    real = rules.make_plan
    monkeypatch.setattr(rules, "make_plan", lambda *args: planned.append(args) or real(*args))
    func = graph(lambda emit, x: emit(_exp(x)), ((8, 24), "float32"))[0]
    assert schedules.first(func, schedules.TARGETS[V3]).rule == "elementwise" and len(planned) == 1


def test_the_reports_column_is_as_wide_as_the_longest_name() -> None:
    names = {rule.name for target in schedules.TARGETS.values() for rule in target.rules}
    assert max(map(len, names)) == RULE_WIDTH


def test_a_schedule_keeps_the_attributes() -> None:
    func = graph(lambda emit, x: emit(_exp(x)), ((8, 16), "float32"))[0]
    done = schedules.first(func, schedules.TARGETS[V3]).func
    assert done.attrs["tirx.noalias"] == func.attrs["tirx.noalias"]


def _exp(x):
    from tvm import relax

    return relax.op.exp(x)
