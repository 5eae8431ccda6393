"""How many threads a run computes with: by the cores that it may use, and by how busy they are."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from artifacts.device import active_threads, control_groups, memory_check, threads
from tests.artifacts.support import environment
from tests.artifacts.test_memory_check import put

V2 = "41 31 0:38 / {at} rw,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate"
V1 = "32 31 0:29 {root} {at} rw,relatime - cgroup cgroup rw,{name}"


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine of 8 cores, with nothing said of control groups yet."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    put(tmp_path / "proc/self")
    return tmp_path


def available(machine: Path) -> int:
    return threads.available(str(machine / "proc"), str(machine / "usual"))


def test_without_groups_the_cores_count(machine: Path) -> None:
    assert available(machine) == 8
    put(machine / "proc/self", cgroup="0::/a/b\n3:cpu,cpuacct:/c", mountinfo="no such thing\n1 2")
    assert available(machine) == 8


@pytest.mark.parametrize(
    ("said", "count"),
    [("50000 100000", 1), ("100000 100000", 1), ("150000 100000", 2), ("1000 1000000", 1), ("700000 100000", 7),
     ("9900000 100000", 8), ("max 100000", 8), ("", 8), ("-5 100000", 8), ("100000 0", 8), ("x y", 8)],
)  # fmt: skip
@pytest.mark.parametrize("group", ["", "a", "a/b"])
def test_a_quota_of_the_second_version_is_rounded_up_whatever_group_around_has_it(
    machine: Path, group: str, said: str, count: int
) -> None:
    put(machine / "proc/self", cgroup="0::/a/b", mountinfo=V2.format(at=machine / "else where").replace(" w", "\\040w"))
    put(machine / "else where/a/b", cpu__max="max 100000")
    put(machine / "else where" / group, cpu__max=said)
    assert available(machine) == count


def test_the_smallest_quota_of_all_groups_counts(machine: Path) -> None:
    put(machine / "proc/self", cgroup="0::/a/b")
    put(machine / "usual/a/b", cpu__max="600000 100000")
    put(machine / "usual/a", cpu__max="250000 100000")
    put(machine / "usual", cpu__max="400000 100000")
    assert available(machine) == 3
    put(machine / "usual/a/b/below", cpu__max="100000 100000")  # not one that this process is in
    put(machine / "usual/ab", cpu__max="100000 100000")
    assert available(machine) == 3


@pytest.mark.parametrize(("us", "count"), [("-1", 8), ("50000", 1), ("310000", 4)])
@pytest.mark.parametrize(
    ("root", "below"), [("/", "docker/x/y"), ("/docker/x", "y"), ("/other", ""), ("/docker/x/y", "")]
)
def test_a_quota_of_the_first_version(machine: Path, root: str, below: str, us: str, count: int) -> None:
    """A container's mount may begin at its own group; what is not below the mount is taken for the mount itself."""
    at = machine / "cpu,cpuacct"
    lines = [V1.format(root="/", at=machine / "memory", name="memory"), V1.format(root=root, at=at, name="cpuacct,cpu")]
    put(
        machine / "proc/self",
        cgroup="4:memory:/docker/x/y\n3:cpu,cpuacct:/docker/x/y\n0::/",
        mountinfo="\n".join(lines),
    )
    put(at / below, cpu__cfs_quota_us=us, cpu__cfs_period_us=100000)
    put(machine / "memory/docker/x/y", cpu__cfs_quota_us=1000, cpu__cfs_period_us=100000)
    assert available(machine) == count


def test_a_way_out_of_the_mount_is_not_gone(machine: Path) -> None:
    put(machine / "proc/self", cgroup="0::/../../other")
    put(machine / "usual", cpu__max="200000 100000")
    put(machine / "other", cpu__max="100000 100000")
    assert available(machine) == 2


def test_the_memory_s_groups_are_found_where_they_are_mounted(machine: Path) -> None:
    put(machine / "proc/self", cgroup="0::/a/b", mountinfo=V2.format(at=machine / "elsewhere"))
    put(machine / "elsewhere/a", memory__max=500000, memory__current=200000)
    assert memory_check.free(str(machine / "proc"), str(machine / "usual")) == 300000


def test_a_run_has_as_many_threads_as_its_group_grants(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr(control_groups, "quota", lambda *_: (2.5, "/g"))
    for name in ("TVM_NUM_THREADS", "TVM_BIND_THREADS", "TVM_THREAD_POOL_SPIN_COUNT"):
        monkeypatch.setenv(name, "7")
    assert threads.set_threads(None) == 3 and os.environ["TVM_NUM_THREADS"] == "3"
    assert threads.set_threads(5) == 5 and os.environ["TVM_THREAD_POOL_SPIN_COUNT"] == "0"
    said = "this process may use 8 cores, and a quota of 2.5 of a core in /g"
    assert (
        threads.description(None) == f"threads: 3 ({said})"
        and threads.description(5) == f"threads: 5 (by --threads; {said})"
    )


def read(folder: str, name: str) -> str:
    return " ".join(control_groups.lines(f"{folder}/{name}"))


@contextlib.contextmanager
def real_group() -> Iterator[Path]:
    """A new group below this process's own, of whatever version this machine has."""
    shares = lambda f: "cpu" in read(f, "cgroup.subtree_control")  # noqa: E731
    found = [Path(f) for version, f in control_groups.folders("cpu") if version == 1 or shares(f)]
    if not found:
        pytest.skip("this machine has no control groups that share out processors")
    folder = found[-1]
    made = folder / f"sexpgpu-test-{os.getpid()}"
    try:
        made.mkdir()
    except OSError as error:
        pytest.skip(f"no group can be made here: {error}")
    try:
        yield made
    finally:
        made.rmdir()


def test_a_real_quota_is_seen() -> None:
    with real_group() as group:
        try:
            if (group / "cpu.max").exists():
                (group / "cpu.max").write_text("50000 100000")
            else:
                (group / "cpu.cfs_quota_us").write_text("50000")
        except OSError as error:
            pytest.skip(f"no quota can be set here: {error}")
        code = (
            "import os, sys\nfrom artifacts.device import threads\n"
            "open(sys.argv[1], 'w').write(str(os.getpid()))\nprint(threads.available(), threads.description(None))"
        )
        argv = [sys.executable, "-c", code, str(group / "cgroup.procs")]
        done = subprocess.run(argv, env=environment(), capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("1 threads: 1 (") and f"a quota of 0.5 of a core in {group}" in done.stdout


# By how busy the machine is


class Told:
    """What a crew told the runtime, on a machine whose accounts are given: others' cores, and the share of the time
    that a thread is held up."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, most: int, cores_there: int = 8) -> None:
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores_there)))
        monkeypatch.setattr(active_threads.time, "perf_counter", lambda: self.now)
        monkeypatch.setattr(active_threads, "switches", lambda: self.switched)
        monkeypatch.setattr(active_threads, "read", self.read)
        self.now = self.busy = self.own = self.waited = 0.0
        self.switched = self.reads = 0
        self.counts: list[int] = []
        self.crew = active_threads.ActiveThreads(most, self.counts.append)

    def read(self) -> active_threads.Reading:
        self.reads += 1
        return active_threads.Reading(self.now, self.busy, self.own, {"7": self.waited})

    def go(self, windows: int, others: float = 0.0, held: float = 0.0) -> list[int]:
        """What was told in some windows of time, of 25 steps each."""
        before = len(self.counts)
        for _ in range(windows * 25):
            self.now += active_threads.PERIOD / 24  # a little more than a window
            self.own += active_threads.PERIOD / 24 * self.crew.active
            self.busy += active_threads.PERIOD / 24 * (self.crew.active + others)
            self.waited += active_threads.PERIOD / 24 * held
            self.switched += 20 if held else 0
            self.crew.look()
        return self.counts[before:]


def test_a_run_that_is_alone_reads_no_accounts(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told(monkeypatch, 8)
    assert told.go(100) == [] and told.reads == 0
    told = Told(monkeypatch, 1)
    assert told.go(20, others=8, held=0.9) == [] and told.reads == 0


@pytest.mark.parametrize(
    ("most", "there", "others", "count"),
    [(2, 2, 1.0, 1), (2, 2, 0.7, 1), (2, 2, 2.0, 1), (8, 8, 1.0, 7), (8, 8, 3.2, 5), (8, 8, 8.0, 4), (7, 7, 7.0, 4),
     (4, 8, 6.0, 2)],
)  # fmt: skip
def test_threads_rest_where_others_hold_them_up_and_come_back(
    monkeypatch: pytest.MonkeyPatch, most: int, there: int, others: float, count: int
) -> None:
    told = Told(monkeypatch, most, there)
    assert told.go(4, others, held=0.5) == [count]
    assert told.go(20, others) == []  # what others do is seen with fewer threads too
    assert told.go(4) == [most] and told.crew.min_active == count
    assert told.go(20) == []


def test_others_that_hold_nobody_up_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs that make way for this one, and cores that nobody needs."""
    assert Told(monkeypatch, 2, 2).go(20, others=2.0, held=0.05) == []
    assert Told(monkeypatch, 2, 8).go(20, others=3.0, held=0.5) == []


def test_what_is_idle_for_a_moment_is_not_yet_free(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told(monkeypatch, 2, 2)
    assert told.go(4, 1.0, held=0.5) == [1]
    for _ in range(10):
        assert told.go(1) + told.go(1, 1.0) == []


def test_no_more_threads_than_the_user_says(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told(monkeypatch, 3, 64)
    assert told.go(4, 63.0, held=0.5) == [2]
    assert told.go(10) == [3]


def test_this_machine_s_accounts_grow() -> None:
    before = active_threads.read()
    end = active_threads.time.process_time() + 0.2
    while active_threads.time.process_time() < end:
        pass
    now = active_threads.read()
    assert before is not None and now is not None and before.waits and now.waits
    assert now.own - before.own >= 0.2 and now.busy - before.busy >= 0
    assert 0 <= active_threads.free_cores(before, now, 1024) <= 1024


@pytest.mark.parametrize("text", ["", "cpu0 a b c d e f g h\n", "intr 5\n"])
def test_accounts_that_are_not_there_decide_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "stat").write_text(text)
    found = active_threads.read(str(tmp_path / "stat"))
    assert found is None or found.busy == 0
    assert (
        active_threads.read(str(tmp_path / "none")) is None
        and active_threads.read(tasks=str(tmp_path / "none")) is None
    )
