"""Autotuning: for each program, MetaSchedule's candidates are measured against the schedule of our own rules.

A candidate must write exactly the bits of the rules' kernel, and the best must be faster by MIN_SPEEDUP and by MIN_GAIN
in a final comparison in which the two alternate; else the rules' schedule stays. Each measurement is logged at once, so
a search that is restarted gets the same times and makes the same candidates.
"""

from __future__ import annotations

import hashlib
import json
import statistics
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TextIO

import attrs
from tvm import tirx

from ..rule import first
from ..tir.builder import Call
from ..tir.context import TREE_WIDTH
from ..tir.contraction import contractions_of
from ..tir.rewrite import collect
from ..tir.stages import NotStaged, read_program
from . import records
from .measure import Arguments, Measured, arguments
from .records import Record
from .search_space import Search

# Part of the rules' time: above the noise of a median of a few rounds. Chosen; a smaller number keeps records of noise.
MIN_SPEEDUP = 0.05
# Seconds, half of what a launch costs: for less a record is not worth keeping. Chosen.
MIN_GAIN = 0.2e-6
# Measurements of each in the final comparison, of which the median counts. Chosen: odd, so that the median is a time
# that was measured.
COMPARISONS = 3
LOG_FILE = "trials.jsonl"
OTHER_BITS = "candidates have other bits: "
SPLIT_SUMS = "the rules sum in lanes that meet at the end, and candidates one element after the other"
OTHER_ROUNDING = "they round at other places"

Compile = Callable[[tirx.PrimFunc], bytes]  # a scheduled program to a library with the function "main"
Measure = Callable[[bytes, Arguments], Measured]


@attrs.frozen
class Effort:
    """``trials`` candidates of each program; the search's ``seed``."""

    trials: int
    seed: int


@attrs.frozen
class Tools:
    """What the caller provides.

    compile: raises whatever a compiler raises, for a candidate that cannot be compiled
    measure: raises MeasureFault where nothing can be measured at all
    check:   called before every trial; raises to stop
    """

    compile: Compile
    measure: Measure
    check: Callable[[], None]


@attrs.frozen
class Outcome:
    """The result for a program: its record, and for the user the rules' and the best candidate's seconds, how many
    candidates were measured, how many had other bits, how many failed."""

    record: Record
    rule: float = 0.0
    best: float | None = None
    trials: int = 0
    wrong: int = 0
    failed: int = 0


class Log:
    """Measurements in a file, a line each. What is no measurement is dropped, such as a line that a stop cut short,
    and a line of another compiler's."""

    def __init__(self, path: Path) -> None:
        self._measurements: dict[str, Measured] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        for line in path.read_bytes().splitlines(keepends=True) if path.exists() else []:
            compiler, what, measured = _read(line)
            if compiler == records.compiler():
                self._measurements[what] = measured
        text = "".join(_line(what, m) for what, m in self._measurements.items())
        if not path.exists() or path.read_text(encoding="utf-8", errors="replace") != text:
            # Beside it and renamed: whatever ends the process, the old or the new file is there.
            replacement = path.with_name(f"{path.name}.new")
            replacement.write_text(text, encoding="utf-8")
            replacement.replace(path)
        self._file: TextIO = path.open("a", encoding="utf-8")

    def get(self, what: str, measure: Callable[[], Measured]) -> Measured:
        """What was measured of ``what`` before, or now."""
        if what not in self._measurements:
            self._measurements[what] = measurement = measure()
            self._file.write(_line(what, measurement))
            self._file.flush()
        return self._measurements[what]

    def close(self) -> None:
        self._file.close()


def _read(line: bytes) -> tuple[str, str, Measured]:
    """Compiler, what was measured and how it went, of a line; no compiler where it is none or not whole: what is
    missing is measured again."""
    try:
        row = json.loads(line.decode("utf-8")) if line.endswith(b"\n") else None
        kinds = {"compiler": str, "what": str, "seconds": float, "digest": str, "error": str}
        if isinstance(row, dict) and {name: type(value) for name, value in row.items()} == kinds:
            return row.pop("compiler"), row.pop("what"), Measured(**row)
    except (ValueError, RecursionError):
        pass
    return "", "", Measured()


def _line(what: str, measured: Measured) -> str:
    row = {"compiler": records.compiler(), "what": what, **attrs.asdict(measured)}
    return json.dumps(row, sort_keys=True, allow_nan=False) + "\n"


def tune(
    programs: Mapping[str, tirx.PrimFunc],
    target: Any,
    effort: Effort,
    tools: Tools,
    folder: Path,
    tell: Callable[[int, int, str, Outcome], None],
) -> dict[str, Record]:
    """Records for all ``programs``, in ``folder`` after each of them, beside those of other programs that are there.

    ``tell`` hears of every program: its number, how many there are, its name, and what came of it.
    Raises RecordsFault for records that cannot be read, MeasureFault, and what ``tools.check`` raises.
    """
    name_of_set = records.set_of(target)
    done = dict(records.load(folder, name_of_set).by_key)
    log = Log(folder / name_of_set / LOG_FILE)
    try:
        for n, (name, func) in enumerate(programs.items(), 1):
            tools.check()
            key = records.key_of(func)
            record = done.get(key)
            outcome = Outcome(record) if record else tune_one(name, func, target, effort, tools, log)
            if record is None:
                done[key] = outcome.record
                records.write(folder, name_of_set, done.values())
            tell(n, len(programs), name, outcome)
    finally:
        log.close()
    return done


def tune_one(name: str, func: tirx.PrimFunc, target: Any, effort: Effort, tools: Tools, log: Log) -> Outcome:
    """Search, compare and decide for a program."""
    key = records.key_of(func)
    reason = unsuitable_reason(func, target)
    if reason:
        return Outcome(Record(key, name, why=reason))
    trial = _Trial(key, func, target, effort, tools, log)
    rule = trial.measured("rule", trial.rules_schedule)
    if rule.error:
        return Outcome(Record(key, name, why=f"the rules' kernel was not measured: {rule.error}"))
    try:
        result = trial.search(rule.digest)
    except _NoCandidates:
        return Outcome(Record(key, name, why="there are no candidates"), rule.seconds)
    if result.best is None:
        cause = SPLIT_SUMS if has_split_sums(func) else OTHER_ROUNDING
        why = OTHER_BITS + cause if result.wrong else "no candidate runs"
        return Outcome(Record(key, name, why=why), rule.seconds, None, result.trials, result.wrong, result.failed)
    rule_seconds, candidate_seconds = trial.compare(result.best, rule.digest)
    is_faster = candidate_seconds < min((1 - MIN_SPEEDUP) * rule_seconds, rule_seconds - MIN_GAIN)
    record = Record(key, name, result.best) if is_faster else Record(key, name, why="no candidate is faster")
    return Outcome(record, rule_seconds, candidate_seconds, result.trials, result.wrong, result.failed)


def unsuitable_reason(func: tirx.PrimFunc, target: Any) -> str:
    """Why a program is not offered to MetaSchedule; "" where it is."""
    if "in_place" in (func.attrs or {}):
        return "it works in place"
    written = sorted(
        {call.op.name for call in collect(func.body, Call) if getattr(call.op, "name", "") in target.functions}
    )
    return f"the rules write {' '.join(written)} out step by step" if written else ""


def has_split_sums(func: tirx.PrimFunc) -> bool:
    """Has a program sums, contractions aside, that are long enough for the rules to split them over lanes?"""
    try:
        program = read_program(records.canonical(func))
    except NotStaged:
        return False
    products = contractions_of(program)
    return any(
        s.reduction is not None and s.reduction.kind in ("sum", "prod") and s.depth >= TREE_WIDTH and not s.in_order
        for s in program.stages
        if s not in products
    )


class _NoCandidates(Exception):
    """MetaSchedule offers no candidate for a program."""


@attrs.define
class _SearchResult:
    best: Any = None
    seconds: float = float("inf")
    trials: int = 0
    wrong: int = 0
    failed: int = 0


@attrs.frozen
class _Trial:
    """The trials of a program."""

    key: str
    func: tirx.PrimFunc
    target: Any
    effort: Effort
    tools: Tools
    log: Log
    libraries: dict[str, bytes] = attrs.field(factory=dict)

    def rules_schedule(self) -> tirx.PrimFunc:
        """The program as the rules schedule it. Raises LookupError where none takes it."""
        done = first(records.canonical(self.func), self.target)
        if done.func is None:
            raise LookupError("no schedule rule took it")
        return done.func

    def trace_schedule(self, trace: Any) -> Callable[[], tirx.PrimFunc]:
        return lambda: records.scheduled(self.func, trace, self.target)

    def measured(self, what: str, schedule: Callable[[], tirx.PrimFunc]) -> Measured:
        """What ``schedule()`` takes and writes; ``what`` names it, and what follows a space there says which time."""
        return self.log.get(f"{self.key} {what}", lambda: self._measure_now(what.partition(" ")[0], schedule))

    def _measure_now(self, what: str, schedule: Callable[[], tirx.PrimFunc]) -> Measured:
        self.tools.check()
        try:
            if what not in self.libraries:
                self.libraries[what] = self.tools.compile(schedule())
        except Exception as fault:  # a candidate that does not compile counts as failed, it does not end the search
            self.tools.check()
            return Measured(error=" ".join(f"{type(fault).__name__}: {fault}".split())[:200])
        return self.tools.measure(self.libraries[what], arguments(self.func))

    def search(self, bits: str) -> _SearchResult:
        """The fastest candidate that writes ``bits``. After a first round in which none does the search ends: all
        candidates sum in the same order, so none will."""
        try:
            search = Search(self.func, self.target, self.effort.trials, self.effort.seed)
            batch = search.next()
        except Exception as fault:
            self.tools.check()
            raise _NoCandidates from fault
        result = _SearchResult()
        while batch:
            seconds = [self._try_candidate(candidate, bits, result) for candidate in batch]
            if result.best is None and result.wrong == result.trials:
                break
            search.tell(batch, seconds)
            batch = search.next()
        if not result.trials:
            raise _NoCandidates
        return result

    def _try_candidate(self, candidate: Any, bits: str, result: _SearchResult) -> float | None:
        trace = records.trace_of(candidate.sch)
        measured = self.measured(_trace_name(trace), self.trace_schedule(trace))
        result.trials += 1
        if measured.error:
            result.failed += 1
            return None
        if measured.digest != bits:
            result.wrong += 1
            return None
        if measured.seconds < result.seconds:
            result.best, result.seconds = trace, measured.seconds
        return measured.seconds

    def compare(self, trace: Any, bits: str) -> tuple[float, float]:
        """Median seconds of the rules' kernel and of the candidate's, measured in turns; infinite if it does not write
        ``bits`` each time."""
        rule_runs, candidate_runs = [], []
        # In turns, so that a machine that slows down slows both.
        for n in range(COMPARISONS):
            rule_runs.append(self.measured(f"rule again {n}", self.rules_schedule))
            candidate_runs.append(self.measured(f"{_trace_name(trace)} again {n}", self.trace_schedule(trace)))
        is_deterministic = all(run.digest == bits for run in candidate_runs)
        rule_seconds = statistics.median(run.seconds for run in rule_runs)
        candidate_seconds = statistics.median(run.seconds for run in candidate_runs)
        return rule_seconds, candidate_seconds if is_deterministic else float("inf")


def _trace_name(trace: Any) -> str:
    return hashlib.sha256(json.dumps(trace).encode()).hexdigest()[:16]
