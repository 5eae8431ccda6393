"""Tuning records: schedule traces that a build replays, without search or clock. docs/tuning.md says what is promised.

A record belongs to a program by its key, the sha256 of the program with canonical variable names: content alone
identifies it. Its trace is MetaSchedule's: a list of instructions and the decisions taken in them. Traces with an
instruction that could change the order of a sum are refused.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import attrs
import tvm
from tvm import s_tir, tirx
from tvm_ffi.serialization import from_json_graph_str

from surroundings import temporary

from ..gpu.threads.launch import fused_as_c
from ..tir.accumulators import fma
from ..tir.builder import Call
from ..tir.rewrite import rewrite

FORMAT = 1
FILE = "records.jsonl"
_UNFINISHED = re.compile(r"\.records[a-z0-9_]{8}")
SHIPPED = Path(__file__).parents[1] / "records"  # those of the examples, see docs/tuning.md
# Attributes that are part of a program's identity. The rest is dropped from the key, since lowering adds it by the
# graph around the program: kept, equal programs of two runs would not share a record.
KEPT_ATTRIBUTES = ("s_tir", "tirx.noalias", "in_place")
# Instructions that leave the order of every sum as it is. Others of MetaSchedule's do not (RFactor), or change what is
# computed with (Tensorize, SetScope), so a record with any other is refused.
_KEEP_BITS = """
Annotate Bind CacheRead CacheWrite ComputeAt ComputeInline DecomposeReduction EnterPostproc Fuse GetChildBlocks
GetConsumers GetLoops GetProducers GetSBlock Parallel Reorder ReverseComputeAt ReverseComputeInline SampleCategorical
SampleComputeLocation SamplePerfectTile Split Unannotate Unroll Vectorize
"""
KEEP_BITS = frozenset(_KEEP_BITS.split())


class RecordsFault(ValueError):
    """A file of records that cannot be used; the message is the user's."""


@attrs.frozen
class Record:
    """What tuning decided for a program.

    key:    see ``key_of``
    kernel: the program's name where it was tuned, for a reader
    trace:  instructions and decisions, as JSON; None where the rules' schedule stays
    why:    why it stays, in words; "" with a trace
    """

    key: str
    kernel: str
    trace: Any = None
    why: str = ""

    def line(self) -> str:
        """Canonical JSON. The time is the same for all, so that a file says what was decided and not when."""
        rest = {"why": self.why} if self.trace is None else {"run_secs": [1.0], "trace": self.trace}
        return _json({"kernel": self.kernel, "key": self.key, **rest})


@attrs.frozen
class Records:
    """The records of the schedule set ``name`` by key; ``reason`` is why there are none."""

    name: str
    by_key: Mapping[str, Record]
    reason: str = ""


@attrs.frozen
class TunedRule:
    """The rule that replays records; a build with records tries it before all others."""

    records: Mapping[str, Record]
    name: str = "tuned"

    def apply(self, func: tirx.PrimFunc, target: Any) -> tirx.PrimFunc | None:
        record = self.records.get(key_of(func))
        return scheduled(func, record.trace, target) if record is not None and record.trace is not None else None


def set_of(target: Any) -> str:
    """The schedule set whose records ``target`` uses: GPUs of a level share a library, and so its schedules."""
    return target.gpu.level if target.gpu is not None else target.name


def compiler() -> str:
    """Whose traces these are: another compiler may number a program's blocks and loops otherwise."""
    return f"apache-tvm {version('apache-tvm')}"


def canonical(func: Any) -> Any:
    """``func`` with variables named v0, v1, ... (their own names come from the graph around it), and without the
    attributes that lowering adds."""
    for key in [key for key in map(str, dict(func.attrs)) if key not in KEPT_ATTRIBUTES]:
        func = func.without_attr(key)
    func = func.with_attr("global_symbol", "main")
    graph = json.loads(tvm.ir.save_json(func))
    nodes = graph["nodes"]
    # By order of occurrence, which follows from the program's structure; names come from the graph around it.
    for n, node in enumerate(node for node in list(nodes) if node["type"] == "ir.Var"):
        nodes.append({"type": "ffi.String", "data": f"v{n}"})
        node["data"]["name"] = len(nodes) - 1
    return from_json_graph_str(json.dumps(graph))


def key_of(func: tirx.PrimFunc) -> str:
    """The sha256 of the program's content, in hex."""
    graph = json.loads(tvm.ir.save_json(canonical(func)))
    return hashlib.sha256(_json([graph["root_index"], graph["nodes"]]).encode()).hexdigest()


def with_fma(func: tirx.PrimFunc, target: Any) -> tirx.PrimFunc:
    """``func`` for MetaSchedule, with the multiply-adds of contractions written as the FMA that our rules use: so any
    order of loops that keeps the order of the sum gives the same bits."""

    def fuse(store: Any) -> Any:
        value = store.value
        if not isinstance(value, tirx.Add) or not isinstance(value.b, tirx.Mul) or not _is_float(value):
            return store
        accumulator = value.a
        if getattr(accumulator, "source", None) is None or not accumulator.source.same_as(store.buffer):
            return store
        return tirx.BufferStore(store.buffer, fma(value.b.a, value.b.b, accumulator), store.indices)

    func = canonical(func)
    body = rewrite(func.body, [(tirx.BufferStore, fuse)])
    return func.with_body(body if target.gpu is None else rewrite(body, [(Call, fused_as_c)]))


def _is_float(value: Any) -> bool:
    return str(value.ty.dtype) in ("float32", "float64")


def scheduled(func: tirx.PrimFunc, trace: Any, target: Any) -> tirx.PrimFunc:
    """``func`` as ``trace`` schedules it. Raises what TVM raises where the trace is not of this program."""
    schedule = s_tir.Schedule(tvm.IRModule({"main": with_fma(func, target)}))
    s_tir.schedule.Trace.apply_json_to_schedule(trace, schedule)
    return schedule.mod["main"]


def trace_of(schedule: s_tir.Schedule) -> Any:
    """The trace of a schedule, without what has no effect, as plain JSON."""
    trace: Any = schedule.trace
    return _plain_json(trace.simplified(False).as_json())


def _plain_json(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, tirx.IntImm | tirx.FloatImm):
        return value.value
    return [_plain_json(item) for item in value]


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def text(target: str, records: Iterable[Record]) -> str:
    """A file of records: a head with the sha256 of the other lines, and these by key."""
    body = "".join(f"{r.line()}\n" for r in sorted(records, key=lambda r: r.key))
    head = {"compiler": compiler(), "format": FORMAT, "sha256": _digest(body), "target": target}
    return f"{_json(head)}\n{body}"


def _digest(body: str) -> str:
    return hashlib.sha256(body.encode()).hexdigest()


def write(folder: Path, target: str, records: Iterable[Record]) -> Path:
    """Replace ``folder``/TARGET/records.jsonl atomically."""
    path = folder / target / FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary.sweep(str(path.parent), _UNFINISHED)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".records")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        temporary.take(handle)
        file.write(text(target, records))
        file.flush()
        # On disk before the rename: after a power failure the name stands for the old file or all of the new file.
        os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    return path


def load(folder: Path, target: str) -> Records:
    """The records of ``folder`` for ``target``; none, with the reason, where there is no file or it is of another
    compiler. Raises RecordsFault for a file that is not what its head says, or has a record that may change bits."""
    path = folder / target / FILE
    try:
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    except FileNotFoundError:
        return Records(target, {}, f"no {target}/{FILE}")
    except (OSError, UnicodeDecodeError) as fault:
        raise RecordsFault(f"{path} cannot be read: {getattr(fault, 'strerror', None) or 'not UTF-8'}") from None
    head = _parsed(path, 1, lines[0] if lines else "")
    if head.get("format") != FORMAT or head.get("target") != target:
        raise RecordsFault(f"{path} is not of format {FORMAT} for {target}")
    if head.get("sha256") != _digest("".join(lines[1:])):
        raise RecordsFault(f"{path} was changed: its lines do not have the sha256 of its head")
    if head.get("compiler") != compiler():
        return Records(target, {}, f"made with {head.get('compiler')}, and this is {compiler()}")
    records = [_record(path, n, _parsed(path, n, line)) for n, line in enumerate(lines[1:], 2)]
    return Records(target, {record.key: record for record in records})


def _parsed(path: Path, n: int, line: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise RecordsFault(f"{path}:{n} is not a record")
    return value


def _record(path: Path, n: int, row: dict[str, Any]) -> Record:
    trace, why = row.get("trace"), row.get("why", "")
    if not isinstance(row.get("key"), str) or not isinstance(row.get("kernel"), str) or not isinstance(why, str):
        raise RecordsFault(f"{path}:{n} is not a record")
    if trace is not None:
        try:
            instructions, _decisions = trace
            foreign = sorted({str(kind) for kind, *_ in instructions} - KEEP_BITS)
        except (TypeError, ValueError):
            raise RecordsFault(f"{path}:{n} has no list of instructions") from None
        if foreign:
            raise RecordsFault(f"{path}:{n} has {' '.join(foreign)}, which may change a kernel's bits")
    return Record(row["key"], row["kernel"], trace, why)
