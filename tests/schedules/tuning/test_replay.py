"""Tuning records: found by content, replayed to the rules' bits, refused when they are not what they say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest

pytest.importorskip("tvm")

import tvm
from tvm import relax, tirx

import schedules
from lowering.codegen.objects import CONFIG, prepare_for_codegen
from lowering.math import elementary
from schedules.tuning import records
from schedules.tuning.measure import Measured
from schedules.tuning.records import Record, RecordsFault
from schedules.tuning.search_space import Search
from schedules.tuning.tuner import Log, has_split_sums
from tests.schedules.gpu.reductions import reduction
from tests.schedules.tensor_programs import V3, Built, build, numbers, operator, runs_here, threads, tvm_target

pytestmark = pytest.mark.build

TARGET = attrs.evolve(schedules.TARGETS[V3], functions=elementary.STEPS)
CASES = {
    "product": lambda: operator("matmul", ("f32", (24, 40)), ("f32", (40, 20))),
    "product, B by rows": lambda: operator("matmul", ("f32", (3, 20, 40)), ("f32", (3, 12, 40)), tb=True),
    "function": lambda: operator("sigmoid", ("f32", (12, 40))),
    "sum of rows": lambda: operator("sum", ("f32", (50, 24)), axes=(0,)),
    "transpose": lambda: operator("transpose", ("f32", (24, 40)), axes=(1, 0)),
}


def product() -> Any:
    return CASES["product"]()


def traces(func: Any, trials: int = 8, seed: int = 3) -> list[Any]:
    """Those of all candidates of a search whose every candidate takes the same time."""
    search, found = Search(func, TARGET, trials, seed), []
    while batch := search.next():
        found += [records.trace_of(one.sch) for one in batch]
        search.tell(batch, [1.0] * len(batch))
    return found


def compiled(func: Any) -> Built:
    """A scheduled program."""
    elementary.install()
    made_for = tvm_target(V3)
    with made_for, tvm.transform.PassContext(config=CONFIG):
        library = tvm.compile(prepare_for_codegen(tvm.IRModule({"main": func}), made_for), target=made_for)
    return Built("tuned", library["main"], tuple((tuple(map(int, p.shape)), str(p.dtype)) for p in func.params))


@pytest.mark.skipif(not runs_here(V3), reason="this CPU has no AVX2")
@pytest.mark.parametrize("name", CASES)
def test_every_candidate_has_the_rules_bits_on_any_number_of_threads(name: str) -> None:
    func = CASES[name]()
    inputs = [numbers(*map(int, p.shape), seed=n) for n, p in enumerate(func.params[:-1])]
    (want,) = build(func).run(*inputs)
    for trace in traces(func, 4):
        tuned = compiled(records.scheduled(func, trace, TARGET))
        for count in (1, 2):
            threads(count)
            assert tuned.run(*inputs)[0].tobytes() == want.tobytes(), trace
    threads(1)


def test_a_search_follows_from_its_seed() -> None:
    func = product()
    assert traces(func) == traces(func)
    assert traces(func, seed=4) != traces(func)
    assert traces(func, 4, 0) != traces(func, 4, 1) != traces(func, 4, 2**63 - 1)


def test_why_no_candidate_has_the_bits_is_told() -> None:
    """Of a softmax: its sum of a row goes to lanes. A row of a few elements, and a product, are summed one by one."""
    for func, lanes in (
        (operator("softmax", ("f32", (8, 40)), axis=1), True),
        (operator("softmax", ("f32", (8, 5)), axis=1), False),
        (reduction("max", (8, 40), (1,)), False),
        (product(), False),
    ):
        assert has_split_sums(func) == lanes


def test_a_trace_is_plain_json_and_gives_the_same_schedule_each_time() -> None:
    func = product()
    for trace in traces(func, 3):
        again = json.loads(json.dumps(trace))
        assert again == trace
        assert tvm.ir.save_json(records.scheduled(func, again, TARGET)) == tvm.ir.save_json(
            records.scheduled(func, trace, TARGET)
        )


def test_a_key_is_of_the_content_and_of_no_name() -> None:
    def named(a: str, b: str, size: int = 8) -> Any:
        """The same program, as graphs with other names around it leave it."""
        bb = relax.BlockBuilder()
        args = [relax.Var(n, relax.TensorType((size, 24), "float32")) for n in (a, b)]
        with bb.function("main", args):
            with bb.dataflow():
                out = bb.emit_output(bb.normalize(relax.op.multiply(bb.emit(relax.op.add(*args)), args[1])))
            bb.emit_func_output(out)
        module = bb.get()
        for name in ("LegalizeOps", "AnnotateTIROpPattern", "FuseOps", "FuseTIR"):
            module = getattr(relax.transform, name)()(module)
        return next(f for _, f in module.functions_items() if isinstance(f, tirx.PrimFunc))

    first, other = named("x", "y"), named("lv7", "lv100")
    assert first.script() != other.script()
    assert records.key_of(first) == records.key_of(other) == records.key_of(first.with_attr("global_symbol", "f"))
    assert records.key_of(named("x", "y", 16)) != records.key_of(first)
    assert records.key_of(first.without_attr("tirx.noalias")) != records.key_of(first)


def test_a_record_comes_before_the_rules_and_only_for_its_program() -> None:
    func, other = product(), CASES["transpose"]()
    trace = traces(func, 1)[0]
    tuned = records.TunedRule({records.key_of(func): Record(records.key_of(func), "product", trace)})
    target = attrs.evolve(TARGET, rules=(tuned, *TARGET.rules))
    assert schedules.first(func, target).rule == "tuned"
    assert schedules.first(other, target).rule == "elementwise"


def test_a_record_without_a_trace_leaves_the_rules_their_kernel() -> None:
    func = product()
    record = Record(records.key_of(func), "product", why="no candidate is faster")
    tuned = records.TunedRule({record.key: record})
    assert schedules.first(func, attrs.evolve(TARGET, rules=(tuned, *TARGET.rules))).rule == "matmul"


def test_a_trace_of_another_program_is_a_failure_that_is_told() -> None:
    func, other = product(), CASES["sum of rows"]()
    tuned = records.TunedRule({records.key_of(other): Record(records.key_of(other), "sum", traces(func, 1)[0])})
    done = schedules.first(other, attrs.evolve(TARGET, rules=(tuned, *TARGET.rules)))
    assert done.rule == "column-reduction" and done.failures[0].startswith("tuned: ")


# The file

ROWS = (
    Record("b" * 64, "two", why="no candidate is faster"),
    Record("a" * 64, "one", [[["GetLoops", [], [], []]], []]),
)


def test_a_file_is_sorted_and_says_nothing_of_times(tmp_path: Path) -> None:
    path = records.write(tmp_path, V3, ROWS)
    assert path == tmp_path / V3 / "records.jsonl"
    assert path.read_text() == records.text(V3, reversed(ROWS))
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row.get("key") for row in rows] == [None, "a" * 64, "b" * 64]
    assert rows[1]["run_secs"] == [1.0]
    assert records.load(tmp_path, V3).by_key == {row.key: row for row in ROWS}
    assert [p.name for p in path.parent.iterdir()] == ["records.jsonl"]


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ('"kernel":"one"', '"kernel":"eno"', "was changed"),
        (f'"target":"{V3}"', '"target":"cpu-aarch64"', "is not of format 1"),
        ('"format":1', '"format":2', "is not of format 1"),
        ("{", "", "records.jsonl:1 is not a record"),
        ("{", "\ufeff{", "records.jsonl:1 is not a record"),
        ("{", "[" * 100_000, "records.jsonl:1 is not a record"),
    ],
)
def test_a_file_that_is_not_what_its_head_says_is_refused(tmp_path: Path, old: str, new: str, what: str) -> None:
    path = records.write(tmp_path, V3, ROWS)
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(RecordsFault, match=what):
        records.load(tmp_path, V3)


@pytest.mark.parametrize("line", ["{", "[" * 100_000, "9" * 5000, "3", "{}", '{"what":"x"}', "\ufeff", "\0" * 9])
def test_what_is_no_measurement_is_measured_again(tmp_path: Path, line: str) -> None:
    """Of the log of a search: a line that a crash or a disk has broken costs what it held, and nothing else."""
    path, known = tmp_path / "trials.jsonl", Measured(1.0, "a", "")
    log = Log(path)
    assert log.get("x", lambda: known) == known
    log.close()
    path.write_text(f"{line}\n{path.read_text()}{line}\n{line}", encoding="utf-8")
    log = Log(path)
    assert log.get("x", lambda: pytest.fail("it was there")) == known
    assert log.get("y", lambda: Measured(2.0)).seconds == 2.0
    log.close()
    assert len(path.read_text().splitlines()) == 2


@pytest.mark.parametrize("kind", ["RFactor", "Tensorize", "SetScope"])
def test_an_instruction_that_may_change_bits_is_refused(tmp_path: Path, kind: str) -> None:
    records.write(tmp_path, V3, [attrs.evolve(ROWS[1], trace=[[[kind, [], [], []]], []])])
    with pytest.raises(RecordsFault, match=f"records.jsonl:2 has {kind}"):
        records.load(tmp_path, V3)


@pytest.mark.parametrize("trace", [3, [], [[]], ["GetLoops"], [[3], []]])
def test_a_trace_that_is_none_is_refused(tmp_path: Path, trace: Any) -> None:
    records.write(tmp_path, V3, [attrs.evolve(ROWS[1], trace=trace)])
    with pytest.raises(RecordsFault, match=r"records.jsonl:2 has"):
        records.load(tmp_path, V3)


def test_records_of_another_compiler_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(records, "compiler", lambda: "apache-tvm 0.26.0")
        records.write(tmp_path, V3, ROWS)
    found = records.load(tmp_path, V3)
    assert found.by_key == {} and found.reason.startswith("made with apache-tvm 0.26.0, and this is apache-tvm 0.27")


def test_no_file_is_no_records(tmp_path: Path) -> None:
    assert records.load(tmp_path, V3) == records.Records(V3, {}, f"no {V3}/records.jsonl")


def test_numbers_of_a_measurement_are_the_same_everywhere() -> None:
    from schedules.tuning import measure

    wanted = measure.arguments(product())
    assert wanted.written == (2,) and [shape for shape, _ in wanted.params] == [(24, 40), (40, 20), (24, 20)]
    once, again = (measure.inputs(wanted, 1) for _ in range(2))
    assert all(np.array_equal(a, b) for a, b in zip(once, again, strict=True))
    assert measure.digest(once) != measure.digest(measure.inputs(wanted, 0))


@pytest.mark.skipif(not runs_here(V3), reason="this CPU has no AVX2")
def test_a_measured_shift_leaves_something_of_a_word() -> None:
    """What is shifted out makes a kernel's work superfluous, and a compiler sees that."""
    from schedules.tuning import measure

    func = operator("shift-right", ("u32", (64,)), ("u32", ()))
    for fill in range(measure.FILLS):
        words, amount, _ = measure.inputs(measure.arguments(func), fill)
        assert amount < 32 and len(set(build(func).run(words, amount)[0])) > 1


# GPUs: the CUDA text of candidates, run on the CPU


@pytest.mark.parametrize("name", ["product", "product, B by rows", "sum of rows", "transpose"])
def test_every_candidate_for_a_gpu_has_the_rules_bits(name: str) -> None:
    from tests.cuda_on_cpu import emulator as cuda

    target = attrs.evolve(schedules.TARGETS["nvidia-h100"], functions=elementary.STEPS)
    func = CASES[name]()
    inputs = [numbers(*map(int, p.shape), seed=n) for n, p in enumerate(func.params[:-1])]
    want = cuda.run(schedules.first(func, target).func, *inputs)[-1]
    batch = Search(func, target, 2, 3).next()
    assert batch
    for one in batch:
        tuned = records.scheduled(func, records.trace_of(one.sch), target)
        for order in ("forward", "hashed"):
            found = cuda.run(tuned, *inputs, order=order, synced=True)[-1]  # MetaSchedule leaves barriers to TVM
            assert found.tobytes() == want.tobytes(), one.sch.trace
