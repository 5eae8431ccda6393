"""The compiled row against a real library, when the compiler is at hand to make one."""

from __future__ import annotations

import errno
import importlib.util
import itertools
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest

from artifacts.base import safetensors_io
from artifacts.base.errors import RunError
from artifacts.device.cpu import CpuDevice
from artifacts.format import library_signature, tar_writer, tarball
from tests.artifacts import toy
from tests.artifacts.support import environment

pytestmark = pytest.mark.build

MAKE = """
import sys, tvm
from tvm import relax
T = relax.TensorType
names = "float32 bfloat16 float16 float64 int8 uint8 int32 uint32 int64 bool".split()
ins = [relax.Var(f"v{i}", T((2, 3), name)) for i, name in enumerate(names)]
bb = relax.BlockBuilder()
with bb.function("train", ins):
    with bb.dataflow():
        outs = [bb.emit(relax.op.flip(v, 0)) for v in ins]
        out = bb.emit_output(relax.Tuple(outs))
    bb.emit_func_output(out)
target = tvm.target.Target({"kind": "llvm", "mtriple": sys.argv[2]})
signature = sys.argv[1] + ".cc"
with open(signature, "w") as file:
    file.write('extern "C" { extern const char %s[]; const char %s[] = "%s"; }' % (*[sys.argv[3]] * 2, sys.argv[4]))
relax.build(bb.get(), target=target).export_library(sys.argv[1], addons=[signature])
print(tvm.__file__)
"""


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An artifact whose ``train`` turns one tensor of each dtype upside down."""
    if importlib.util.find_spec("tvm") is None:
        pytest.skip("needs the compiler: pip install 'sexpgpu[build]'")
    folder = tmp_path_factory.mktemp("cpu")
    library = folder / "phases.so"
    triple = f"{os.uname().machine}-linux-gnu"
    import tvm_ffi

    tools = attrs.evolve(toy.manifest().toolchain, tvm_ffi=tvm_ffi.__version__)
    said = attrs.evolve(toy.manifest(), toolchain=tools)
    signed = (
        library_signature.SYMBOL,
        library_signature.of(said, said.targets[0]),
    )  # of the toy's phases, which it has not
    made = subprocess.run(
        [sys.executable, "-c", MAKE, library, triple, *signed], env=environment(), capture_output=True, text=True
    )
    assert made.returncode == 0, made.stderr
    runtime = Path(made.stdout.strip()).parent / "lib" / "libtvm_runtime.so"
    members = {**toy.MEMBERS, toy.LIBRARY: library.read_bytes(), toy.RUNTIME: runtime.read_bytes()}
    tar_writer.write(str(folder / "a.tar"), said, members)
    return str(folder / "a.tar")


def every_dtype_through_a_compiled_phase(path: str) -> None:
    device = CpuDevice(tarball.open(path), 1)
    arrays = [(np.arange(6).reshape(2, 3) % 5).astype(safetensors_io.dtype(name)) for name in safetensors_io.DTYPES]
    handles = [device.tensor(array) for array in arrays]
    assert all(device.numpy(h).ctypes.data % 64 == 0 for h in handles)
    made = device.phase("train")(handles)
    for array, handle in zip(arrays, made, strict=True):
        found = device.numpy(handle)
        assert found.dtype == array.dtype and np.array_equal(found, array[::-1])
    device.zero(handles[:1])
    assert not device.numpy(handles[0]).any()


def a_tensor_is_a_copy_and_a_view_keeps_it_alive(path: str) -> None:
    device = CpuDevice(tarball.open(path), 1)
    array = np.arange(6, dtype=np.float32)[::2]  # not contiguous
    view = device.numpy(device.tensor(array))
    array[:] = -1
    again = [device.tensor(np.full(3, 9, np.float32)) for _ in range(50)]
    assert view.tolist() == [0, 2, 4] and len(again) == 50


def failing_calls_are_coded(path: str) -> None:
    device = CpuDevice(tarball.open(path), 1)
    with pytest.raises(RunError) as caught:
        device.phase("train")([device.tensor(np.zeros(1, np.float32))])
    assert caught.value.code.name == "E-DEVICE-001" and "\n" not in str(caught.value)
    with pytest.raises(RunError) as caught:
        device.phase("update")
    assert caught.value.code.name == "E-ENV-011"


def a_second_device_uses_the_runtime_of_the_first(path: str) -> None:
    for _ in range(2):
        every_dtype_through_a_compiled_phase(path)


def no_room_for_what_is_loaded(path: str) -> None:
    """The runtime or the library finds no room in memory, by what the system says and by a limit of the process. Once
    there is room, both are loaded."""
    space, limit = (errno.ENOSPC, errno.EDQUOT), (errno.ENOMEM, errno.EMFILE)
    codes = {**dict.fromkeys(space, "E-IO-011"), **dict.fromkeys(limit, "E-ENV-012")}
    files, calls = ("runtime", "phases"), ("memfd_create", "write")  # in this order: once it is loaded, a runtime stays
    for name, call, (number, code) in itertools.product(files, calls, codes.items()):
        with pytest.MonkeyPatch.context() as patch:
            fail_at(patch, name, call, number)
            with pytest.raises(RunError) as caught:
                CpuDevice(tarball.open(path), 1)
        assert caught.value.code.name == code and name in caught.value.where, (name, call, str(caught.value))
        assert "library named" not in str(caught.value)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, before[1]))
    with pytest.raises(RunError) as caught:
        CpuDevice(tarball.open(path), 1)
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert caught.value.code.name == "E-IO-011" and "free space" in str(caught.value)
    every_dtype_through_a_compiled_phase(path)


def fail_at(patch: pytest.MonkeyPatch, name: str, call: str, number: int) -> None:
    """The system's ``call`` fails for the file in memory that is called ``name``."""
    real = getattr(os, call)

    def failing(first: Any, *more: Any) -> Any:
        if name == first or call == "write" and f"memfd:{name} " in os.readlink(f"/proc/self/fd/{first}"):
            raise OSError(number, os.strerror(number))
        return real(first, *more)

    patch.setattr(os, call, failing)


CHECKS = (
    every_dtype_through_a_compiled_phase,
    a_tensor_is_a_copy_and_a_view_keeps_it_alive,
    failing_calls_are_coded,
    a_second_device_uses_the_runtime_of_the_first,
    no_room_for_what_is_loaded,
)


@pytest.mark.parametrize("check", [check.__name__ for check in CHECKS])
def test_in_a_process_without_the_compiler(artifact: str, tmp_path: Path, check: str) -> None:
    """A process holds one runtime, and this one may have the compiler's. Nothing is left on disk, nothing is said."""
    program = "import sys; from tests.artifacts import test_cpu; getattr(test_cpu, sys.argv[1])(sys.argv[2])"
    argv = [sys.executable, "-c", program, check, artifact]
    done = subprocess.run(argv, env=environment(TMPDIR=str(tmp_path)), capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "") and not list(tmp_path.iterdir())
