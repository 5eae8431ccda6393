"""One scheduled program as a shared library of its own, for the tuner to measure: the code is that of a build."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tvm
from attrs import frozen
from tvm import tirx

from ..codegen import module_blob
from ..codegen import objects as codegen
from ..codegen.cuda_source import FORMAT, Device
from . import shared_library

CUBIN = "cubin"  # TVM's format of a module that the GPU's driver loads as it is


def library(
    module: str, target: Any, machine: str, kernels: Callable[..., bytes] | None = None, arch: str = ""
) -> bytes:
    """The shared library for ``machine`` ("x86_64" or "aarch64"), complete: no compiler is needed there.

    module:  the program, under its name, as TVM's JSON
    target:  a tvm.target.Target or the dictionary of one
    kernels: for a GPU, the compiler (CUDA text, ``arch``, names of the kernels) -> cubin
    Raises what TVM raises for a program that it cannot compile, KernelFault, LinkFault.
    """
    part = codegen.compile_part(module, target, _no_schedule)
    vectors = codegen.device.bool_vectors(part.device.source) if part.device else ()
    if part.unbound or vectors:
        raise codegen.KernelFault(dict.fromkeys(part.unbound, ()), vectors)
    with tempfile.TemporaryDirectory() as folder:
        code = Path(folder) / "kernel.o"
        code.write_bytes(part.object)
        objects = [code]
        if part.device and kernels:
            objects.append(
                _embed_cubin(part.device, kernels(part.device.source, arch, part.device.kernels), target, folder)
            )
        return _link(objects, machine, Path(folder) / "kernel.so")


def _embed_cubin(device: Device, cubin: bytes, target: Any, folder: str) -> Path:
    """The object with the GPU's module, which holds the cubin where a build has the key."""
    head = module_blob.string(CUBIN.encode()) + device.head.removeprefix(module_blob.string(FORMAT.encode()))
    root = module_blob.Entry(module_blob.CODE, None, (1,))
    data = module_blob.write([root, module_blob.Entry("cuda", head + module_blob.string(cubin), ())])
    host = codegen.hosted(target).host
    triple = json.dumps({"kind": "llvm", "mtriple": host.attrs["mtriple"]})
    path = Path(folder) / "carried.o"
    object_module = tvm.get_global_func("codegen.codegen_blob")(data, False, triple, "")
    object_module.write_to_file(str(path), "o")
    return path


def _link(objects: list[Path], machine: str, path: Path) -> bytes:
    shared_library.link_objects([*map(str, objects)], str(path), machine)
    return path.read_bytes()


@frozen
class _Unscheduled:
    func: Any
    rule: str = "given"
    failures: tuple[str, ...] = ()


def _no_schedule(func: tirx.PrimFunc, _: Any) -> _Unscheduled:
    return _Unscheduled(func)
