"""Library bytes: the same everywhere, wanting nothing that a runner lacks, for either machine."""

from __future__ import annotations

import hashlib
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from lowering_runs import ARM, T, compiled, graph, inputs

from sexpgpu.graph.core import Builder, Graph

pytest.importorskip("ziglang", reason="needs the extra `build`")

from artifacts.base import elf  # noqa: E402
from lowering.codegen import temp_space  # noqa: E402
from lowering.link import shared_library  # noqa: E402

pytestmark = pytest.mark.build
HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def small() -> Graph:
    b = Builder()
    x, w, seed = inputs(b, x=T("f32", 2, 3, 16), w=T("f32", 16, 8), seed=T("u32", 2))
    return graph(
        "f",
        [x, w, seed],
        y=b("sum", b("matmul", x, w), axes=(2,)),
        bits=b("philox", seed, b.const(7, "i64"), shape=(9,), place=3),
    )


def in_f64(name: str = "f") -> Graph:
    b = Builder()
    (x,) = inputs(b, x=T("f64", 5))
    return graph(name, [x], y=b("exp", x))


PRINT_DIGEST = """
import hashlib, test_export as t
print(hashlib.sha256(t.shared_library.library(t.compiled(t.small(), t.in_f64('second')), "x86_64")).hexdigest())
"""


def test_bytes_depend_on_the_module_alone(tmp_path):
    digests = {hashlib.sha256(shared_library.library(compiled(small(), in_f64("second")), "x86_64")).hexdigest()}
    for n, hash_seed in enumerate(("1", "99")):
        folder = tmp_path / ("a folder with a longer name" * n or "a")
        folder.mkdir()
        env = {
            "PATH": "",
            "HOME": str(folder),
            "TMPDIR": str(folder),
            "PYTHONHASHSEED": hash_seed,
            "LC_ALL": "C",
            "TZ": "Asia/Tokyo",
            "PYTHONPATH": os.pathsep.join((str(ROOT), str(HERE))),
        }
        done = subprocess.run(
            [sys.executable, "-c", PRINT_DIGEST], cwd=folder, env=env, capture_output=True, text=True, umask=0o077
        )
        assert done.returncode == 0, done.stderr
        digests.add(done.stdout.strip())
    assert len(digests) == 1


def test_a_library_wants_only_what_every_runner_has():
    data = shared_library.library(compiled(small()), "x86_64")
    shared = elf.read(data)
    assert shared.machine == "x86_64" and shared.needed == ()
    assert set(shared.undefined) <= {"TVMFFIErrorSetRaisedFromCStrParts", *shared_library.LLVM_SYMBOLS}
    assert shared_library.libm(data) == ()
    assert not any(word in data for word in (b"/tmp", b"/work", b"/home", b"GCC", sys.prefix.encode()))


def test_functions_of_libm_are_told_and_anything_else_is_refused(monkeypatch):
    data = shared_library.library(compiled(in_f64()), "x86_64")
    assert shared_library.libm(data) == ("exp",)
    allowed = {"expf": False, "powf": False, "fmodf": True, "fmod": True, "printf": False, "f": False}
    assert {s: shared_library.may_call(s) for s in allowed} == allowed
    monkeypatch.setattr(shared_library, "LIBM", frozenset())
    with pytest.raises(shared_library.LinkFault, match="wants exp, which a runner need not have"):
        shared_library.check(data, "x86_64")


def test_the_other_machine_gets_a_library_of_its_own():
    data = shared_library.library(compiled(small(), spec=ARM), "aarch64")
    assert elf.read(data).machine == "aarch64"
    with pytest.raises(shared_library.LinkFault, match="for aarch64, not x86_64"):
        shared_library.check(data, "x86_64")


@pytest.mark.skipif(shutil.which("readelf") is None, reason="binutils are not installed")
def test_readelf_agrees(tmp_path):
    path = tmp_path / "arm.so"
    path.write_bytes(shared_library.library(compiled(small(), spec=ARM), "aarch64"))
    done = subprocess.run(
        ["readelf", "-h", "-W", "--dyn-syms", str(path)],
        capture_output=True,
        text=True,
        env={**os.environ, "LC_ALL": "C"},
    )
    assert done.returncode == 0 and not done.stderr
    assert "AArch64" in done.stdout and "DYN (Shared object file)" in done.stdout
    undefined = {line.split()[-1] for line in done.stdout.splitlines() if " UND " in line and len(line.split()) == 8}
    assert undefined == set(elf.read(path.read_bytes()).undefined)


def test_a_linker_that_refuses_is_our_fault(monkeypatch):
    monkeypatch.setattr(shared_library, "LINK", ("ld.lld", "--no-such-option"))
    with pytest.raises(shared_library.LinkFault, match="no-such-option"):
        shared_library.library(compiled(in_f64()), "x86_64")


def test_the_runtime_is_that_of_the_wheel_or_the_one_given(tmp_path):
    machine = os.uname().machine
    data = shared_library.runtime_library(machine)
    given = tmp_path / "given.so"
    given.write_bytes(data)
    assert shared_library.runtime_library(machine, given) == data
    other = {"x86_64": "aarch64", "aarch64": "x86_64"}[machine]
    with pytest.raises(shared_library.RuntimeFault, match=f"is for {machine}, and the target is {other}"):
        shared_library.runtime_library(other)


def test_what_is_not_a_runtime_is_refused(tmp_path):
    path = tmp_path / "x.so"
    with pytest.raises(shared_library.RuntimeFault, match="cannot be read: No such file"):
        shared_library.runtime_library("x86_64", path)
    path.write_bytes(shared_library.library(compiled(in_f64()), "x86_64"))
    with pytest.raises(shared_library.RuntimeFault, match="not the runtime of the tvm wheel"):
        shared_library.runtime_library("x86_64", path)
    path.write_bytes(b"text")
    with pytest.raises(shared_library.RuntimeFault, match="is not a 64-bit little-endian ELF file"):
        shared_library.runtime_library("x86_64", path)


def test_damaged_elf_files_are_refused_and_never_crash():
    data = shared_library.library(compiled(in_f64()), "x86_64")
    for size in (7, 40, 64, 600, len(data) // 2, len(data) - 1):
        with pytest.raises(elf.NotElf):
            elf.read(data[:size])
    for at, value in ((16, 2), (18, 3), (40, 2**63), (40, len(data) - 8)):
        with pytest.raises(elf.NotElf):
            elf.read(data[:at] + struct.pack("<Q" if at == 40 else "<H", value) + data[at + (8 if at == 40 else 2) :])


def test_a_full_folder_for_temporary_files_is_no_end_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=temp_space.MIN_FREE_BYTES - 1))
    with pytest.raises(OSError, match="32 MiB") as caught:
        shared_library.library(compiled(small()), "x86_64")
    assert os.path.isdir(caught.value.filename)
