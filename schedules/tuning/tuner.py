"""Tuning: for each program, candidates of MetaSchedule's are measured against the rules' own schedule.

A candidate must write the very bits that the rules' kernel writes, and the best must be faster than it by MARGIN and by
LEAST in a last comparison, the two in turns; else the rules' schedule stays. What was measured is kept in a log as it
comes, so that a search which is started again is told the same times and makes the same candidates.
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

MARGIN = 0.05  # of the rules' time, and
LEAST = 0.2e-6  # seconds, half of what a launch costs: less is not worth a record
DUELS = 3  # measurements of each in the last comparison
LOG = "trials.jsonl"
BITS = "candidates have other bits: "
LANES = "the rules sum in lanes that meet at the end, and candidates one element after the other"
ROUNDED = "they round at other places"

Compile = Callable[[tirx.PrimFunc], bytes]  # a scheduled program to a library with the function "main"
Measure = Callable[[bytes, Arguments], Measured]


@attrs.frozen
class Effort:
    """``trials`` candidates of each program; the search's ``seed``."""

    trials: int
    seed: int


@attrs.frozen
class Tools:
    """What tuning is lent.

    compile: raises whatever a compiler raises, for a candidate that cannot be compiled
    measure: raises MeasureFault where nothing can be measured at all
    check:   called before every trial; raises to stop
    """

    compile: Compile
    measure: Measure
    check: Callable[[], None]


@attrs.frozen
class Outcome:
    """What was found for a program: its record, and for the user the rules' and the best candidate's seconds, how many
    candidates were measured, how many had other bits, how many failed."""

    record: Record
    rule: float = 0.0
    best: float | None = None
    trials: int = 0
    wrong: int = 0
    failed: int = 0


class Log:
    """Measurements in a file, a line each. What is no measurement is dropped, such as a line that a stop cut short,
    and one of another compiler's."""

    def __init__(self, path: Path) -> None:
        self._known: dict[str, Measured] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        for line in path.read_bytes().splitlines(keepends=True) if path.exists() else []:
            compiler, what, measured = _read(line)
            if compiler == records.compiler():
                self._known[what] = measured
        text = "".join(_line(what, m) for what, m in self._known.items())
        if not path.exists() or path.read_text(encoding="utf-8", errors="replace") != text:
            new = path.with_name(f"{path.name}.new")  # whatever ends the process, the old or the new file is there
            new.write_text(text, encoding="utf-8")
            new.replace(path)
        self._file: TextIO = path.open("a", encoding="utf-8")

    def get(self, what: str, measure: Callable[[], Measured]) -> Measured:
        """What was measured of ``what`` before, or now."""
        if what not in self._known:
            self._known[what] = found = measure()
            self._file.write(_line(what, found))
            self._file.flush()
        return self._known[what]

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
    found = {"compiler": records.compiler(), "what": what, **attrs.asdict(measured)}
    return json.dumps(found, sort_keys=True, allow_nan=False) + "\n"


def tune(
    programs: Mapping[str, tirx.PrimFunc],
    target: Any,
    effort: Effort,
    tools: Tools,
    folder: Path,
    tell: Callable[[int, int, str, Outcome], None],
) -> dict[str, Record]:
    """Records for all ``programs``, in ``folder`` after each of them, beside those of other programs that are there.

    ``tell`` hears of every program: its place, how many there are, its name, and what came of it.
    Raises RecordsFault for records that cannot be read, MeasureFault, and what ``tools.check`` raises.
    """
    name_of_set = records.set_of(target)
    done = dict(records.load(folder, name_of_set).by_key)
    log = Log(folder / name_of_set / LOG)
    try:
        for n, (name, func) in enumerate(programs.items(), 1):
            tools.check()
            key = records.key_of(func)
            known = done.get(key)
            outcome = Outcome(known) if known else tune_one(name, func, target, effort, tools, log)
            if known is None:
                done[key] = outcome.record
                records.write(folder, name_of_set, done.values())
            tell(n, len(programs), name, outcome)
    finally:
        log.close()
    return done


def tune_one(name: str, func: tirx.PrimFunc, target: Any, effort: Effort, tools: Tools, log: Log) -> Outcome:
    """What is best for one program."""
    key = records.key_of(func)
    unfit = unfitness(func, target)
    if unfit:
        return Outcome(Record(key, name, why=unfit))
    trial = _Trial(key, func, target, effort, tools, log)
    rule = trial.measured("rule", trial.of_rules)
    if rule.error:
        return Outcome(Record(key, name, why=f"the rules' kernel was not measured: {rule.error}"))
    try:
        found = trial.search(rule.digest)
    except _NoSpace:
        return Outcome(Record(key, name, why="there are no candidates"), rule.seconds)
    if found.best is None:
        why = BITS + (LANES if sums_in_lanes(func) else ROUNDED) if found.wrong else "no candidate runs"
        return Outcome(Record(key, name, why=why), rule.seconds, None, found.trials, found.wrong, found.failed)
    mine, theirs = trial.duel(found.best, rule.digest)
    faster = theirs < min((1 - MARGIN) * mine, mine - LEAST)
    record = Record(key, name, found.best) if faster else Record(key, name, why="no candidate is faster")
    return Outcome(record, mine, theirs, found.trials, found.wrong, found.failed)


def unfitness(func: tirx.PrimFunc, target: Any) -> str:
    """Why a program is not offered to MetaSchedule; "" where it is."""
    if "in_place" in (func.attrs or {}):
        return "it works in place"
    written = sorted(
        {call.op.name for call in collect(func.body, Call) if getattr(call.op, "name", "") in target.functions}
    )
    return f"the rules write {' '.join(written)} out step by step" if written else ""


def sums_in_lanes(func: tirx.PrimFunc) -> bool:
    """Has a program sums, beside products, that are long enough for the rules to share them out to lanes?"""
    try:
        program = read_program(records.plain(func))
    except NotStaged:
        return False
    products = contractions_of(program)
    return any(
        s.reduction is not None and s.reduction.kind in ("sum", "prod") and s.depth >= TREE_WIDTH and not s.in_order
        for s in program.stages
        if s not in products
    )


class _NoSpace(Exception):
    """MetaSchedule makes nothing of a program."""


@attrs.define
class _Found:
    best: Any = None
    seconds: float = float("inf")
    trials: int = 0
    wrong: int = 0
    failed: int = 0


@attrs.frozen
class _Trial:
    """The trials of one program."""

    key: str
    func: tirx.PrimFunc
    target: Any
    effort: Effort
    tools: Tools
    log: Log
    libraries: dict[str, bytes] = attrs.field(factory=dict)

    def of_rules(self) -> tirx.PrimFunc:
        """By the rules. Raises LookupError where none takes the program."""
        done = first(records.plain(self.func), self.target)
        if done.func is None:
            raise LookupError("no schedule rule took it")
        return done.func

    def of_trace(self, trace: Any) -> Callable[[], tirx.PrimFunc]:
        return lambda: records.scheduled(self.func, trace, self.target)

    def measured(self, what: str, schedule: Callable[[], tirx.PrimFunc]) -> Measured:
        """What ``schedule()`` takes and writes; ``what`` names it, and what follows a space there says which time."""
        return self.log.get(f"{self.key} {what}", lambda: self._now(what.partition(" ")[0], schedule))

    def _now(self, what: str, schedule: Callable[[], tirx.PrimFunc]) -> Measured:
        self.tools.check()
        try:
            if what not in self.libraries:
                self.libraries[what] = self.tools.compile(schedule())
        except Exception as fault:  # a candidate that cannot be compiled is one that is of no use
            self.tools.check()
            return Measured(error=" ".join(f"{type(fault).__name__}: {fault}".split())[:200])
        return self.tools.measure(self.libraries[what], arguments(self.func))

    def search(self, bits: str) -> _Found:
        """The fastest of the candidates that write ``bits``. One round in which none does is the last: the order of
        sums is the same for all of them."""
        try:
            search = Search(self.func, self.target, self.effort.trials, self.effort.seed)
            batch = search.next()
        except Exception as fault:
            self.tools.check()
            raise _NoSpace from fault
        found = _Found()
        while batch:
            told = [self._one(one, bits, found) for one in batch]
            if found.best is None and found.wrong == found.trials:
                break
            search.tell(batch, told)
            batch = search.next()
        if not found.trials:
            raise _NoSpace
        return found

    def _one(self, candidate: Any, bits: str, found: _Found) -> float | None:
        trace = records.trace_of(candidate.sch)
        made = self.measured(_name(trace), self.of_trace(trace))
        found.trials += 1
        if made.error:
            found.failed += 1
            return None
        if made.digest != bits:
            found.wrong += 1
            return None
        if made.seconds < found.seconds:
            found.best, found.seconds = trace, made.seconds
        return made.seconds

    def duel(self, trace: Any, bits: str) -> tuple[float, float]:
        """Median seconds of the rules' kernel and of the candidate's, measured in turns; infinite for one that does not
        write ``bits`` each time."""
        mine, theirs = [], []
        for n in range(DUELS):
            mine.append(self.measured(f"rule again {n}", self.of_rules))
            theirs.append(self.measured(f"{_name(trace)} again {n}", self.of_trace(trace)))
        steady = all(made.digest == bits for made in theirs)
        ours = statistics.median(made.seconds for made in mine)
        return ours, statistics.median(made.seconds for made in theirs) if steady else float("inf")


def _name(trace: Any) -> str:
    return hashlib.sha256(json.dumps(trace).encode()).hexdigest()[:16]
