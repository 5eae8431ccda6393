"""``sexpgpu tune``: the lowering compiles candidates that the schedules think of, and a machine measures them. Beside
driver.py it joins the packages, as no build needs it."""

from __future__ import annotations

import contextlib
import fnmatch
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from surroundings import temporary

from ..language import codes
from ..language.diagnostics import UserError, printable
from ..phases.plan import Plan
from ..reports.output import line, warn
from . import interrupt
from .options import TuneOptions

MOST = 8  # kernels that a message names
PATIENCE = 120  # seconds that one candidate may take to compile, before it is given up


def tune(plan: Plan, options: TuneOptions) -> dict[str, Any]:
    """Records for the kernels of ``plan`` in ``options.out``; what came of it, for the command line."""
    target = one_target(options.target)
    check_place(target, options)
    check_out(Path(options.out))
    programs = wanted_programs(plan, options.only)
    from schedules.tuning import records
    from schedules.tuning.measure import MeasureFault
    from schedules.tuning.tuner import Effort, Tools, tune

    show, effort = Progress(sys.stderr, options.json), Effort(options.trials, options.seed)
    try:
        with temporary.used(), apart() as call:
            measure = measurer(target, options, call)
            tools = Tools(compiler(target, call), lambda *job: (show.trial(), measure(*job))[1], interrupt.check)
            with alone(Path(options.out) / records.set_of(target), lambda text: warn(text, options.json)):
                made = tune(programs, target, effort, tools, Path(options.out), show.kernel)
    except MeasureFault as fault:
        raise UserError(codes.TUNE_PLACE, None, str(fault)) from None
    except records.RecordsFault as fault:
        raise UserError(codes.TUNE_RECORDS, None, str(fault)) from None
    except KeyboardInterrupt:
        said = "what was measured is kept, and the same command goes on from there"
        print(line({"stopped": said}) if options.json else said, file=sys.stderr)
        raise
    ours = [made[records.key_of(func)] for func in programs.values()]
    path = Path(options.out) / records.set_of(target) / records.FILE
    return {"records": str(path), "kernels": len(ours), "tuned": sorted(r.kernel for r in ours if r.trace is not None)}


def one_target(names: str) -> Any:
    """The target of ``--target``, with what its rules need to know of the lowering."""
    import attrs

    from .targets import find_targets

    found = find_targets(names)
    if len(found) != 1:
        what = f"tuning is for one target, and {names} is {' and '.join(t.name for t in found)}"
        raise UserError(codes.TUNE_TARGET, None, what)
    from lowering.math import elementary

    return attrs.evolve(found[0], functions=elementary.STEPS)


def check_place(target: Any, options: TuneOptions) -> None:
    """E-TUNE-003 where this machine cannot run the target's kernels and is to."""
    if options.tracker:
        return
    if target.gpu is not None:
        hint = "give --tracker and --key; both may be on this machine, if it has the GPU"
        raise UserError(codes.TUNE_PLACE, None, f"kernels of {target.name} are measured by a server", hint=hint)
    cpuinfo = Path("/proc/cpuinfo")
    words = set(cpuinfo.read_text(encoding="utf-8").split()) if cpuinfo.exists() else set()
    absent = [flag for flag in target.cpu_flags if flag not in words]
    if absent:
        hint = "give --tracker and --key of a machine that has it"
        raise UserError(codes.TUNE_PLACE, None, f"this machine lacks {' '.join(absent)} of {target.name}", hint=hint)


def check_out(out: Path) -> None:
    """E-IO-001 where ``out`` is no folder and cannot become one."""
    there = next(path for path in (out, *out.absolute().parents) if path.exists())
    if not there.is_dir():
        raise UserError(codes.IO_WRITE, None, f"{there} is not a folder", where="--out")
    if not os.access(there, os.W_OK | os.X_OK):
        raise UserError(codes.IO_WRITE, None, f"the folder {there} cannot be written to", where="--out")


@contextlib.contextmanager
def alone(folder: Path, say: Callable[[str], None]) -> Iterator[None]:
    """E-LOCK-001 where another process tunes into ``folder``: each would write its own records over the other's."""
    from artifacts.base import directory_lock

    folder.mkdir(parents=True, exist_ok=True)
    with directory_lock.hold(str(folder), say):
        yield


def wanted_programs(plan: Plan, only: str | None) -> dict[str, Any]:
    """The tensor programs that a build of ``plan`` schedules, those that match ``only``. E-TUNE-005 where none does."""
    from lowering import emit, pipeline

    pairs = {p.function: p.in_place for p in plan.phases if p.in_place}
    programs = pipeline.lower(emit.emit([p.graph for p in plan.phases]), pairs).programs
    interrupt.check()
    found = {name: func for name, func in programs.items() if only is None or fnmatch.fnmatchcase(name, only)}
    if not found:
        most = ", ".join([*programs][:MOST]) + (", ..." if len(programs) > MOST else "")
        what = f"--only {only} is the name of none of {len(programs)} kernels"
        raise UserError(codes.TUNE_NONE, None, what, hint=f"there are {most}; * stands for any letters")
    return found


@contextlib.contextmanager
def apart() -> Iterator[Callable[..., Any]]:
    """A function that calls another in a process of its own, which may be lost: LLVM or a kernel may end it."""
    from lowering.codegen.workers import WorkerDied, Workers

    alive: list[Workers] = []

    def call(seconds: int, function: Callable[..., Any], *job: Any) -> Any:
        if not alive:
            alive.append(Workers(1, ("lowering.link.standalone_kernel", "schedules.tuning.measure", __name__)))
        try:
            return alive[0].map(in_time, [(seconds, function, *job)])[0]
        except WorkerDied:
            close()
            raise

    def close() -> None:
        while alive:
            alive.pop().__exit__(None, None, None)

    try:
        yield call
    finally:
        close()


def in_time(seconds: int, function: Callable[..., Any], *job: Any) -> Any:
    """``function(*job)``; the end of this process where that takes longer."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(seconds)
    try:
        return function(*job)
    finally:
        signal.alarm(0)


def compiler(target: Any, call: Callable[..., Any]) -> Callable[[Any], bytes]:
    """A scheduled program to a library with the function ``main``, by the lowering of a build."""
    import tvm

    from lowering.link import standalone_kernel

    gpu: tuple[Any, ...] = ()
    if target.gpu is not None:
        from schedules.cuda import cubin

        gpu = (cubin.kernels, target.gpu.arch)

    def compile(func: Any) -> bytes:
        text = tvm.ir.save_json(tvm.IRModule({"main": func.with_attr("global_symbol", "main")}))
        return call(PATIENCE, standalone_kernel.library, text, dict(target.tvm), target.machine, *gpu)

    return compile


def measurer(target: Any, options: TuneOptions, call: Callable[..., Any]) -> Callable[..., Any]:
    """How kernels are measured: by servers of a tracker, or on this machine's CPU."""
    from lowering.codegen.workers import WorkerDied
    from schedules.tuning.measure import MAX_KERNEL_SECONDS, Measured, Nodes, measure_in_process

    from .compile import cores

    if options.tracker:
        host, _, port = options.tracker.rpartition(":")
        device = "cpu" if target.gpu is None else "cuda"
        return Nodes(host, int(port), options.key, device)

    def measure(library: bytes, wanted: Any) -> Measured:
        try:
            return call(MAX_KERNEL_SECONDS, measure_in_process, library, wanted, options.threads or cores())
        except (WorkerDied, RuntimeError) as fault:
            return Measured(error=" ".join(str(fault).split())[:200])

    return measure


class Progress:
    """A line for each kernel; on a terminal the trials of the one at hand are counted too. ``json_too``: as data."""

    def __init__(self, file: Any, json_too: bool = False) -> None:
        self._file, self._json, self._live, self._trials = file, json_too, file.isatty() and not json_too, 0

    def trial(self) -> None:
        self._trials += 1
        if self._live:
            print(f"\r\033[K  measurement {self._trials}", end="", file=self._file, flush=True)

    def kernel(self, n: int, of: int, name: str, outcome: Any) -> None:
        clear, said = "\r\033[K" if self._live else "", told(outcome)
        text = f"{clear}[{n}/{of}] {printable(name)}: {said}"
        print(line({"kernel": name, "number": n, "of": of, "told": said}) if self._json else text, file=self._file)
        self._file.flush()
        self._trials = 0


def told(outcome: Any) -> str:
    """``8 trials, 11.0 us by the rules, 9.6 us tuned`` and what follows from it."""
    if not outcome.rule:
        return outcome.record.why or "has a record"
    parts = [f"{outcome.trials} trials", f"{us(outcome.rule)} by the rules"]
    parts += [f"{outcome.wrong} with other bits"] if outcome.wrong else []
    parts += [f"{outcome.failed} failed"] if outcome.failed else []
    parts += [f"{us(outcome.best)} tuned"] if outcome.best else []
    return ", ".join(parts) + (f": {outcome.record.why}" if outcome.record.why else "")


def us(seconds: float) -> str:
    """``11.0 us``; of less than one, as many digits as tell it from another."""
    return f"{seconds * 1e6:.1f} us" if seconds >= 1e-6 else f"{seconds * 1e6:.3f} us"
