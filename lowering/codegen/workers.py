"""A pool of worker processes that compile parts of a build.

A job and its answer are data, and do not depend on the process that ran it. Processes and not threads, because TVM's
passes hold the interpreter lock. They are forked by a fork server that has loaded the compiler and run nothing, since
TVM and LLVM keep threads and locks that a fork of this process would break.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection, wait
from types import ModuleType, TracebackType
from typing import Any

from surroundings import temporary

SERVER = multiprocessing.get_context("forkserver")
Job = tuple[Any, ...]  # the arguments of a call


class WorkerDied(RuntimeError):
    """A worker process ended during a job: LLVM aborted, or the machine ran out of memory. ``status`` is its exit
    status, or minus the number of the signal that ended it."""

    def __init__(self, status: int | None) -> None:
        super().__init__(f"a compiling process ended with status {status}")
        self.status = status


class Workers:
    """At most ``count`` processes that have loaded ``modules``. A context manager: leaving it ends them.

    The fork server starts to load at once; the processes start with the first jobs.
    """

    def __init__(self, count: int, modules: Sequence[str]) -> None:
        self._count = count
        self._processes: dict[Connection, Any] = {}
        SERVER.set_forkserver_preload(["surroundings.child", *modules])
        with _isolated_environment():
            resource_tracker.ensure_running()  # it unblocks SIGINT, as the server would
            with _sigint_blocked():
                forkserver.ensure_running()

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for pipe, process in self._processes.items():
            pipe.close()
            process.terminate()
            process.join()
        self._processes.clear()

    def map(self, call: Callable[..., Any], jobs: Sequence[Job]) -> list[Any]:
        """``call(*job)`` for every job, in their order; the call and its arguments must pickle.

        Raises what a call raised, and WorkerDied.
        """
        self._start(min(self._count, len(jobs)))
        answers: list[Any] = [None] * len(jobs)
        pending = list(reversed(range(len(jobs))))
        idle: list[Any] = list(self._processes)
        busy: dict[Any, int] = {}
        while pending or busy:
            while pending and idle:
                pipe, n = idle.pop(), pending.pop()
                busy[pipe] = n
                with self._watched(pipe):
                    pipe.send((call, jobs[n]))
            pipes: list[Any] = wait(list(busy))
            for pipe in pipes:
                with self._watched(pipe):
                    answers[busy.pop(pipe)] = _value(pipe.recv())
                idle.append(pipe)
        return answers

    def _start(self, count: int) -> None:
        while len(self._processes) < count:
            master_end, worker_end = SERVER.Pipe()
            process = SERVER.Process(target=_serve, args=(worker_end,), daemon=True)
            with _sigint_blocked(), _isolated_environment():
                process.start()
            self._processes[master_end] = process
            worker_end.close()

    @contextmanager
    def _watched(self, pipe: Any) -> Iterator[None]:
        """While something is sent or received: WorkerDied if the process at the other end has ended."""
        try:
            yield
        except (EOFError, BrokenPipeError, ConnectionResetError):
            process = self._processes[pipe]
            process.join()
            raise WorkerDied(process.exitcode) from None


@contextmanager
def _isolated_environment() -> Iterator[None]:
    """The environment in which worker processes start. They import what this process can, but nothing from its working
    directory, which may hold anything or be deleted, and they do not run its script. They print no warnings, and use
    this process's folder for temporary files."""
    with temporary.used() as folder:
        tempfile.tempdir = temporary.for_sockets(os.getpid())  # for this process; the workers have TMPDIR
        path, main = sys.path.copy(), sys.modules["__main__"]
        try:
            working_directory = os.open(".", os.O_PATH | os.O_CLOEXEC)
        except PermissionError:  # this user may not open the folder: no relative path is used
            working_directory = os.open("/", os.O_PATH | os.O_CLOEXEC)
        variables = {"PYTHONSAFEPATH": "1", "PYTHONWARNINGS": "ignore"}
        sys.path[:] = [entry for entry in path if os.path.isabs(entry)]
        variables["PYTHONPATH"] = os.pathsep.join(sys.path)
        saved = {name: os.environ.get(name) for name in variables}
        os.chdir(folder)
        sys.modules["__main__"] = ModuleType("__main__")
        os.environ.update(variables)
        try:
            yield
        finally:
            for name in variables:
                del os.environ[name]
            os.environ.update({name: value for name, value in saved.items() if value is not None})
            sys.path[:], sys.modules["__main__"] = path, main
            os.fchdir(working_directory)
            os.close(working_directory)


@contextmanager
def _sigint_blocked() -> Iterator[None]:
    """Ctrl-C sends SIGINT to the whole process group. Workers inherit the blocked signal and never see it, so that only
    this process reports the interrupt."""
    saved_mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, saved_mask)


def _value(answer: tuple[Any, Exception | None]) -> Any:
    value, error = answer
    if error is not None:
        raise error
    return value


def _serve(pipe: Connection) -> None:
    """The main loop of a worker. It ends when the other end of the pipe is closed, whatever ended the master."""
    try:
        while True:
            call, job = pipe.recv()
            pipe.send(_answer(call, job))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return


def _answer(call: Callable[..., Any], job: Job) -> tuple[Any, Exception | None]:
    try:
        return call(*job), None
    except Exception as error:
        # TVM's errors may not pickle.
        picklable = error if isinstance(error, OSError) else RuntimeError(f"{type(error).__name__}: {error}")
        picklable.add_note(traceback.format_exc())
        return None, picklable
