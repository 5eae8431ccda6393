"""What a run takes of the machine's memory: counted before it starts, compared with what is there."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest

from artifacts import data, memory
from artifacts import manifest as m
from artifacts.errors import RunError
from artifacts.rehearsal import BESIDE, NUMBER, PAGE, Asked, rehearse

from . import toy
from .support import go, one_error

NOTHING = Asked((), ())
Captured = pytest.CaptureFixture[str]


def taken(manifest: m.Manifest, **asked: Asked) -> int:
    """Bytes of the rehearsed run; ``asked``: phase, with _ for its dot, -> what a call asks for beside its results."""
    calls = {p.name: asked.get(p.name.replace(".", "_"), NOTHING) for p in manifest.phases}
    return rehearse(manifest, calls).device


def cost(asked: Asked, phase: str = "train") -> int:
    """By how much the run takes more when ``phase`` asks for ``asked``."""
    return taken(toy.manifest(), **{phase: asked}) - taken(toy.manifest())


def test_blocks_are_kept_by_size_and_used_again_by_other_phases() -> None:
    assert cost(Asked((40_000,), ())) == 40_960 + BESIDE
    one = Asked((40_000, 40_000), ())
    assert cost(one) == 2 * (40_960 + BESIDE)
    both = taken(toy.manifest(), train=one, generate_step=Asked((40_960, 8 * PAGE), ())) - taken(toy.manifest())
    assert both == 2 * (40_960 + BESIDE) + 8 * PAGE + BESIDE  # the step's first block is one of train's


def test_results_that_live_are_beside_the_blocks_of_their_size() -> None:
    wide = attrs.evolve(toy.manifest(), phases=tuple(map(widened, toy.PHASES)))
    states = (taken(wide) - taken(toy.manifest())) / (4 * 10**6)
    assert 1.99 < states < 3.01  # that of a trip, of the trip before, and of init while the loop still holds it
    again = taken(wide, generate_step=Asked((4 * 10**6,), ())) - taken(wide)
    assert again > 4 * 10**6  # a block of its own, as none is free


def widened(phase: m.Phase) -> m.Phase:
    """``phase`` with a state of a million numbers."""

    def of(port: m.Port) -> m.Port:
        return attrs.evolve(port, shape=(10**6,)) if port.kind == "state" else port

    return attrs.evolve(phase, inputs=tuple(map(of, phase.inputs)), outputs=tuple(map(of, phase.outputs)))


def test_workspaces_are_those_of_the_hungriest_kernel_and_of_each_thread() -> None:
    kernels = (((30 * PAGE,), (2 * PAGE,)), ((20 * PAGE, 10 * PAGE), ()), ((), (3 * PAGE,)))
    found = rehearse(toy.manifest(), {p.name: Asked((), kernels) for p in toy.PHASES})
    assert found.thread == 3 * PAGE + BESIDE
    # the calling thread: 30 and 2 pages; then 20 in the 30, and 10 where the 2 were; then 3 in the 10
    assert found.device - taken(toy.manifest()) == (30 + 10) * PAGE + 2 * BESIDE


def test_many_trips_and_batches_are_rehearsed_at_once() -> None:
    long = toy.manifest()
    long = attrs.evolve(long, step=attrs.evolve(long.step, trips=2**31 - 1))
    assert taken(long) - taken(toy.manifest()) == NUMBER * (2**31 - 1 - toy.TRIPS)  # its number, for each trip


def test_what_a_run_wants() -> None:
    made = toy.manifest()
    made = attrs.evolve(made, memory=m.Memory(0, 0, 0, 0, 0, 1000, 10))
    batch = toy.B * 4 * (toy.W + 1)
    want = memory.wanted(made, 3)
    assert (want.device, want.threads, want.batches) == (1000, 30, (memory.AHEAD + 1) * batch)
    assert want.checkpoint == 4 * (toy.W + 1 + toy.W)
    assert want.total == 1030 + want.batches + want.checkpoint
    assert memory.AHEAD == data.AHEAD + 1
    twice = tuple(attrs.evolve(p, name=f"{p.name}*2", stack=2) if p.name == "train" else p for p in made.phases)
    assert memory.wanted(attrs.evolve(made, phases=twice), 3).batches == (memory.AHEAD + 4) * batch


def hungry(nbytes: int) -> m.Manifest:
    made = toy.manifest()
    phases = tuple(attrs.evolve(p, memory_bytes=nbytes // 2 * (p.name == "generate.finish")) for p in made.phases)
    return attrs.evolve(made, memory=attrs.evolve(made.memory, device_bytes=nbytes), phases=phases)


def test_a_run_that_does_not_fit_is_refused_before_it_writes_anything(tmp_path: Path, capsys: Captured) -> None:
    path, out = toy.write(tmp_path, hungry(2**50)), tmp_path / "out"
    assert go(path, out) == 3
    line = one_error(capsys.readouterr().err, "E-MEM-010")
    assert "the run takes 1024.0 TiB of memory, " in line and " are free" in line
    assert "its largest phase is generate.finish with 512.0 TiB" in line and not out.exists()


def test_want_and_have_are_compared_to_the_byte() -> None:
    made = hungry(10**9)
    want = memory.wanted(made, 2).total + memory.OVERHEAD
    memory.check(made, 2, "x.tar", want)
    with pytest.raises(RunError, match="takes 1017.7 MiB of memory, 1017.7 MiB are free"):
        memory.check(made, 2, "x.tar", want - 1)
    more = attrs.evolve(made, memory=attrs.evolve(made.memory, thread_bytes=1))
    with pytest.raises(RunError):
        memory.check(more, 2, "x.tar", want + 1)


def test_the_data_in_memory_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    """Free memory is looked at again once the data is read."""
    left = iter((2**40, 2**20))  # bytes
    monkeypatch.setattr(memory, "free", lambda: next(left))
    assert go(toy.write(tmp_path), tmp_path / "out") == 3
    assert "1.0 MiB are free" in one_error(capsys.readouterr().err, "E-MEM-010")


def test_data_that_does_not_fit_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    path = toy.write(tmp_path)
    with open(tmp_path / "held.npz", "r+b") as file:
        file.truncate(2**40)
    monkeypatch.setattr(memory, "free", lambda: 2**39)
    assert go(path, tmp_path / "out") == 3 and not (tmp_path / "out").exists()
    line = one_error(capsys.readouterr().err, "E-MEM-010")
    assert "the run takes 1.0 TiB of memory, 1.0 TiB of them for data, 512.0 GiB are free" in line


def test_data_in_memory_is_that_of_files_and_of_the_artifact(tmp_path: Path) -> None:
    toy.write_data(tmp_path)
    sizes = [(tmp_path / name).stat().st_size for name in ("rows.npz", "held.npz")]
    made = toy.manifest()
    assert memory.held(made, str(tmp_path)) == sum(sizes) and memory.held(made, str(tmp_path / "none")) == 0
    inside = toy.loader("held", "held.npz", embedded=("data/held/held.npz",))
    files = (m.File("data/held/held.npz", 12345, ""),)
    made = attrs.evolve(made, loaders=(made.loaders[0], inside), files=files)
    assert memory.held(made, str(tmp_path)) == sizes[0] + 12345
    mapped = attrs.evolve(made.loaders[0], sources=("rows",))
    (tmp_path / "rows").mkdir()
    assert memory.held(attrs.evolve(made, loaders=(mapped, inside)), str(tmp_path)) == 12345


# The machine and its control groups


def put(path: Path, **files: object) -> None:
    path.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (path / name.replace("__", ".")).write_text(f"{text}\n")


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    put(tmp_path / "proc", meminfo="MemTotal: 9000 kB\nMemFree: 10 kB\nMemAvailable:    1000 kB")
    put(tmp_path / "proc/self", cgroup="0::/a/b")
    return tmp_path


def free(machine: Path) -> int | None:
    return memory.free(str(machine / "proc"), str(machine / "groups"))


def test_the_machine_s_memory(machine: Path) -> None:
    assert free(machine) == 1000 * 1024
    (machine / "proc/meminfo").unlink()
    assert free(machine) is None


@pytest.mark.parametrize(
    "where, limit, left",
    [
        ("groups/a/b", "500000", 500000 - 300000 + 1000),
        ("groups/a", "500000", 500000 - 300000 + 1000),
        ("groups", "500000", 500000 - 300000 + 1000),
        ("groups/a/b", "max", 1000 * 1024),
        ("groups/a/b/c", "500000", 1000 * 1024),
        ("groups/a/b", "200000", 0),
        ("groups/a/b", "99000000000", 1000 * 1024),
    ],
)
def test_a_control_group_s_limit(machine: Path, where: str, limit: str, left: int) -> None:
    stat = "anon 299000\ninactive_file 1000\nactive_file 7"
    put(machine / where, memory__max=limit, memory__current=300000, memory__stat=stat)
    assert free(machine) == left


def test_a_control_group_s_limit_of_the_first_version(machine: Path) -> None:
    put(machine / "proc/self", cgroup="5:cpu,memory:/a\n0::/")
    stat = "inactive_file 5\ntotal_inactive_file 1000"
    names = {"memory__limit_in_bytes": 500000, "memory__usage_in_bytes": 300000, "memory__stat": stat}
    put(machine / "groups/memory/a", **names)
    assert free(machine) == 201000
    (machine / "groups/memory/a/memory.stat").unlink()
    assert free(machine) == 200000


def test_this_machine_has_memory() -> None:
    assert (memory.free() or 2**40) > 2**20
