"""The processes that a build is shared out to: answers in order, errors as they were, and nobody left behind."""

from __future__ import annotations

import errno
import math
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lowering.codegen.workers import WorkerDied, Workers
from tests.conftest import gone

pytestmark = pytest.mark.build
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("count", [1, 3])
def test_answers_come_in_the_order_of_the_jobs(count: int) -> None:
    with Workers(count, ()) as workers:
        assert workers.map(divmod, [(n, 7) for n in range(50)]) == [divmod(n, 7) for n in range(50)]
        assert workers.map(math.sqrt, []) == []
        assert os.getpid() not in set(workers.map(os.getpid, [()] * 4))


def test_the_error_of_a_job_is_raised_and_says_where_it_was() -> None:
    with Workers(1, ()) as workers:
        with pytest.raises(FileNotFoundError) as lost:
            workers.map(os.stat, [("/no/such/file",)])
        assert (lost.value.errno, lost.value.filename) == (errno.ENOENT, "/no/such/file")
        with pytest.raises(RuntimeError, match="ZeroDivisionError: ") as caught:
            workers.map(divmod, [(1, 1), (1, 0)])
        assert "in _answer" in caught.value.__notes__[0]


def test_a_long_folder_for_temporary_files_is_no_fault(tmp_path: Path) -> None:
    """A socket's path may have 107 bytes."""
    folder = tmp_path / ("long" * 20)
    folder.mkdir()
    code = "import math\nfrom lowering.codegen.workers import Workers\n"
    code += "with Workers(2, ()) as w: print(w.map(math.sqrt, [(4,)]))"
    env = {**os.environ, "TMPDIR": str(folder), "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "[2.0]\n"), done.stderr


def test_a_process_that_ends_is_told_and_the_others_are_ended() -> None:
    with Workers(2, ()) as workers:
        pids = workers.map(os.getpid, [()] * 2)
        with pytest.raises(WorkerDied, match="status 3"):
            workers.map(os._exit, [(3,)])
    assert gone(pids)


LOST = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
from lowering.codegen.workers import Workers
with Workers(2, ()) as workers:
    print(*set(workers.map(os.getpid, [()] * 20)), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_workers_end_when_their_master_is_killed() -> None:
    done = subprocess.run([sys.executable, "-c", LOST, str(ROOT)], stdout=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == -signal.SIGKILL
    assert gone([int(pid) for pid in done.stdout.split()])
