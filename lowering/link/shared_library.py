"""Links a compiled module to a shared library whose bytes depend on the objects alone, not on this machine."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import tvm
from tvm import relax

from artifacts.base import elf

from ..codegen import module_blob
from ..codegen.objects import Compiled
from ..codegen.temp_space import require_free_space

EMULATION = {"x86_64": "elf_x86_64", "aarch64": "aarch64linux"}
# No build id, no symbol names, one hash table, no lazy binding: the bytes depend on the objects alone.
LINK = ("ld.lld", "-shared", "--build-id=none", "-s", "--hash-style=gnu", "-z", "now")
SIGNATURE = "signature"  # the name of a file, and part of the symbols that the linker makes for it
RUNTIME = "libtvm_runtime.so"
CUDA_RUNTIME = "libtvm_runtime_cuda.so"
CUDA_NEEDS = (RUNTIME, "libcudart.so.13", "libcuda.so.1")  # libcuda is the driver's, libcudart is from a wheel
# The libraries that the runtime may need besides libtvm_ffi.so, by prefix: the C and C++ runtime of the machine.
RUNTIME_NEEDS = (
    "libtvm_ffi.so",
    "libc.so",
    "libm.so",
    "libdl.so",
    "libpthread.so",
    "libstdc++.so",
    "libgcc_s.so",
    "ld-",
)

RUNTIME_SYMBOL_PREFIXES = ("TVMFFI", "TVMBackend")  # symbols of TVM's runtime
LLVM_SYMBOLS = ("memcpy", "memmove", "memset", "memcmp")  # calls that LLVM makes in the place of loops
_LIBM = """
acos acosh asin asinh atan atan2 atanh cbrt ceil cos cosh erf erfc exp exp2 exp10 expm1 fabs floor fma fmax fmin fmod
hypot ldexp log log10 log1p log2 nearbyint pow rint round roundeven sin sinh sqrt tan tanh trunc
"""
LIBM = frozenset(_LIBM.split())
# The functions whose result is exact, and so the same in every C library: f32 code may call them.
_EXACT = "ceil fabs floor fma fmax fmin fmod nearbyint rint round roundeven trunc"
EXACT = frozenset(_EXACT.split())


class LinkFault(RuntimeError):
    """The linker failed, or the library needs what a runner need not have: our bug, or a broken toolchain."""


class RuntimeFault(ValueError):
    """There is no runtime library for the machine; the message is for the user."""


def library(compiled: Compiled, machine: str, signature: str = "") -> bytes:
    """The shared library of ``compiled`` for ``machine`` ("x86_64" or "aarch64"). Same module, same bytes.

    signature: ASCII text at the symbol ``_binary_signature_start``, which the loader compares

    Raises LinkFault, and OSError where the folder for temporary files is full.
    """
    executable = _executable(compiled)
    with tempfile.TemporaryDirectory() as folder:
        require_free_space(folder)
        for n, data in enumerate(compiled.objects):
            path = Path(folder) / f"part{n}.o"
            path.write_bytes(data)
            executable.mod.import_module(tvm.runtime.load_static_library(str(path), []))
        path = Path(folder) / "phases.so"
        pack = _packer(compiled) if compiled.devices else None
        Path(folder, SIGNATURE).write_bytes(signature.encode("ascii"))
        linker = _linker(compiled, machine)
        executable.export_library(str(path), fcompile=linker, workspace_dir=folder, fpack_imports=pack)
        data = path.read_bytes()
    check(data, machine)
    return data


def _executable(compiled: Compiled) -> Any:
    """The virtual machine's code without the kernels, which relax.build would compile too."""
    builder = relax.ExecBuilder()
    relax.vm_build._vmcodegen(builder, compiled.lowered.module)
    return builder.get()


def _linker(compiled: Compiled, machine: str) -> Any:
    """The linker as TVM calls it. It runs in the folder of its output, where SIGNATURE is, since it makes symbols of
    the file's name."""

    def link(output: str, objects: Sequence[str], **_: Any) -> None:
        link_objects([*objects, "--format=binary", SIGNATURE], output, machine)

    # TVM reads these attributes: it hands over plain objects, and packs the virtual machine's code for this machine.
    link.object_format = "o"  # type: ignore[attr-defined]
    link.get_target_triple = lambda: compiled.host.attrs["mtriple"]  # type: ignore[attr-defined]
    return link


def link_objects(objects: Sequence[str], output: str, machine: str) -> None:
    """Links ``objects`` to the shared library ``output`` with the linker of the ziglang wheel. It runs as a program of
    its own, without this process's environment variables, in the folder of the output.

    Raises LinkFault.
    """
    spec = find_spec("ziglang")
    if spec is None or not spec.submodule_search_locations:
        raise LinkFault("ziglang cannot be imported")
    zig = Path(spec.submodule_search_locations[0]) / "zig"
    command = [str(zig), *LINK, "-m", EMULATION[machine], "-o", output, *objects]
    completed = subprocess.run(command, env={"PATH": "", "HOME": ""}, cwd=Path(output).parent, capture_output=True)
    if completed.returncode:
        raise LinkFault(f"ld.lld: {completed.stderr.decode(errors='replace').strip()[-2000:]}")


def _packer(compiled: Compiled) -> Any:
    """The function by which TVM gets an object of the imported modules: the virtual machine's code and the modules of
    the GPU's kernels."""

    def pack(module: Any, is_system_lib: bool, prefix: str, folder: str) -> str:
        data = module_blob.with_modules(module_blob.packed(module), "cuda", [d.module for d in compiled.devices])
        host = json.dumps({"kind": "llvm", "mtriple": compiled.host.attrs["mtriple"]})
        path = Path(folder) / "carried.o"
        tvm.get_global_func("codegen.codegen_blob")(data, is_system_lib, host, prefix).write_to_file(str(path), "o")
        return str(path)

    return pack


def check(data: bytes, machine: str) -> None:
    """Raise LinkFault unless ``data`` is a library for ``machine`` that needs only what every runner has."""
    shared = elf.read(data)
    if shared.machine != machine:
        raise LinkFault(f"the library is for {shared.machine}, not {machine}")
    undefined = [s for s in shared.undefined if not s.startswith(RUNTIME_SYMBOL_PREFIXES)]
    foreign = [s for s in undefined if s not in LLVM_SYMBOLS and not may_call(s)]
    if foreign or shared.needed:
        raise LinkFault(f"the library wants {' '.join((*foreign, *shared.needed))}, which a runner need not have")


def may_call(symbol: str) -> bool:
    """Whether code may call ``symbol`` of the C math library (libm): any f64 function, and the exact f32 functions. All
    other f32 functions are our own (elementary.py), so that bits do not depend on the machine's library."""
    return symbol in LIBM or (symbol.endswith("f") and symbol[:-1] in EXACT)


def libm(data: bytes) -> tuple[str, ...]:
    """The functions that the library calls in the C math library (libm) of the machine it runs on; their bits are that
    machine's."""
    return tuple(s for s in elf.read(data).undefined if may_call(s))


def runtime_library(machine: str, given_path: str | Path | None = None, name: str = RUNTIME) -> bytes:
    """A library of TVM's runtime for ``machine``: ``name`` beside ``given_path``, the path of RUNTIME, else from the
    installed wheel.

    Raises RuntimeFault.
    """
    path = Path(tvm.__file__).parent / "lib" / name if given_path is None else Path(given_path)
    path = path if name == RUNTIME else path.with_name(name)
    try:
        data = path.read_bytes()
        shared = elf.read(data)
    except OSError as error:
        raise RuntimeFault(f"{path} cannot be read: {error.strerror}") from None
    except elf.NotElf as error:
        raise RuntimeFault(f"{path} is {error}") from None
    if shared.machine != machine:
        raise RuntimeFault(f"{path} is for {shared.machine}, and the target is {machine}: give its {name}")
    allowed = RUNTIME_NEEDS if name == RUNTIME else (*RUNTIME_NEEDS, *CUDA_NEEDS)
    foreign = [n for n in shared.needed if not n.startswith(allowed)]
    if foreign or "libtvm_ffi.so" not in shared.needed:
        raise RuntimeFault(f"{path} needs {' '.join(shared.needed)}: it is not the runtime of the tvm wheel")
    return data
