"""Trials in a process of their own: one that dies is a finding too."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from .programs import Program

SECONDS = 240.0  # a trial that takes longer hangs


def work(pipe: Connection, gpu: bool) -> None:
    """In the child: programs come, and what is done and found goes."""
    from .trial import trial

    while True:
        try:
            program = pipe.recv()
        except EOFError:
            return
        found, counts = trial(program, gpu, lambda what: pipe.send(("at", what)))
        pipe.send(("done", (None if found is None else (found.kind, found.text)), counts))


class Child:
    """Starts a process when there is work for it, and another one when it has died."""

    def __init__(self, gpu: bool, work: Callable[[Connection, bool], None] = work) -> None:
        self.gpu, self.work = gpu, work
        self.process: Any = None

    def trial(self, program: Program) -> tuple[tuple[str, str] | None, dict[str, float]]:
        """(kind, text) of what is found, or None, and how much was looked at."""
        if self.process is None:
            self.start()
        self.pipe.send(program)
        at = "starting"
        while True:
            try:
                if not self.pipe.poll(SECONDS):
                    self.end()
                    return ("hang", f"over {SECONDS:.0f} s: {at}"), {}
                what, *rest = self.pipe.recv()
            except (EOFError, ConnectionResetError):
                self.process.join()
                code, self.process = self.process.exitcode, None
                return ("crash", f"{signal.Signals(-code).name if code < 0 else code}: {at}"), {}
            if what == "done":
                return rest[0], rest[1]
            at = rest[0]

    def start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=self.work, args=(theirs, self.gpu), daemon=True)
        self.process.start()
        theirs.close()

    def end(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.join()
            self.process = None
