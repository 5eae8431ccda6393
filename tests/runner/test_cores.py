"""Which cores the runtime's threads run on: one each where they fill those that the process may use."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

from artifacts import cores

from .support import environment

CORES = sorted(os.sched_getaffinity(0))
two = pytest.mark.skipif(len(CORES) < 2, reason="needs two cores")


def confined(program: str, allowed: list[int]) -> str:
    """What ``program`` prints in a process of its own that may use the cores ``allowed``."""
    begin = f"import os, threading\nfrom artifacts import cores\nos.sched_setaffinity(0, {set(allowed)})\n"
    done = subprocess.run([sys.executable, "-c", begin + program], env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


POOL = """
started, waiting = [], threading.Event()
def start(count):
    for _ in range(count):
        thread = threading.Thread(target=waiting.wait, daemon=True)
        thread.start()
        started.append(thread.native_id)
cores.settle(lambda: start(%d))
print([sorted(os.sched_getaffinity(task)) for task in (0, *started)])
"""


@two
def test_threads_that_fill_the_cores_have_one_each():
    assert confined(POOL % 1, CORES[:2]) == str([[CORES[0]], [CORES[1]]])


@two
@pytest.mark.parametrize("workers", [0, 2])
def test_fewer_or_more_threads_are_left_to_the_scheduler(workers: int):
    assert confined(POOL % workers, CORES[:2]) == str([CORES[:2]] * (workers + 1))


@two
def test_a_process_is_not_moved_off_the_core_it_is_confined_to():
    assert confined(POOL % 0, CORES[1:2]) == str([CORES[1:2]])


FREE = """
free = threading.Thread(target=lambda: (cores.anywhere(), print(sorted(os.sched_getaffinity(0)))))
free.start()
free.join()
"""


@two
def test_a_thread_of_another_trade_may_run_on_any_core_of_the_process():
    assert confined(POOL % 1 + FREE, CORES[:2]).splitlines()[-1] == str(CORES[:2])


@two
def test_the_cores_are_given_back():
    with cores.restored():
        os.sched_setaffinity(0, {CORES[0]})
    assert sorted(os.sched_getaffinity(threading.get_native_id())) == CORES
