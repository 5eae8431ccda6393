"""One program through the whole compiler, and what is found wrong with what comes out.

The virtual machine runs the program twice. First with each kernel called through ``Watch``: on copies of its tensors
that lie between pages which may not be touched, on one thread and on two, scheduled for either level, on a GPU if that
is asked for; all must leave the same bits. Then as a runner would, from the linked library, on two threads.
"""

from __future__ import annotations

import ctypes
import tempfile
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import attrs
import ml_dtypes  # noqa: F401  (gives NumPy bfloat16)
import numpy as np
import tvm
import tvm_ffi
from tvm import relax, tirx

import schedules
from lowering import emit, pipeline
from lowering.codegen import objects
from lowering.link import shared_library
from lowering.math import elementary
from schedules.tir.rewrite import collect
from tests.cuda_on_cpu import emulator
from tests.schedules.gpu.cpu_and_cuda import bits

from . import bounds, oracle
from .programs import Program

V3, V4 = "cpu-x86-64-v3", "cpu-x86-64-v4"
# Schedules for a target, and threads; all in the instructions of v3. Those that are CHECKED look at their own stores.
CHECKED = " with checks"
WAYS = ((V3, 1), (V3, 2), (V4 + CHECKED, 2))
GPU, UNITS = "cuda-sm_80", "tensor-core"
ALIGNED = 64  # what a kernel may take for granted of its tensors
DRAWS = 3  # of data: where the numbers of one are wrong, so must be those of another


@attrs.frozen
class Finding:
    """``kind`` is crash, hang, fault, no rule, bits, memory or numbers; ``text`` says where."""

    kind: str
    text: str


class Found(Exception):
    """Ends a trial."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.finding = Finding(kind, text)


def trial(program: Program, gpu: bool, told: Callable[[str], None]) -> tuple[Finding | None, dict[str, float]]:
    """What is wrong, if anything, and how much was looked at. ``told`` hears what is done next."""
    counts = {"kernels": 0.0, "elements": 0.0, "sure": 0.0}
    try:
        _trial(program, gpu, told, counts)
    except Found as found:
        return found.finding, counts
    except Exception as fault:  # noqa: BLE001  (whatever the compiler did not foresee)
        place = fault.__traceback__
        while place is not None and place.tb_next is not None:
            place = place.tb_next
        where = f"{Path(place.tb_frame.f_code.co_filename).name}:{place.tb_lineno}" if place else ""
        return Finding("fault", f"{type(fault).__name__} at {where}: {' '.join(str(fault).split())[:300]}"), counts
    return None, counts


def _trial(program: Program, gpu: bool, told: Callable[[str], None], counts: dict[str, float]) -> None:
    told("lowering")
    graph = program.graph()
    pairs = {"main": program.pairs(graph)}
    lowered = pipeline.lower(emit.emit([graph]), pairs)
    libraries = {name: _library(lowered, name, told) for name in dict.fromkeys(way for way, _ in WAYS)}
    devices = _devices(lowered, told) if gpu else {}
    counts["kernels"] = len(lowered.programs)
    watch = Watch(lowered, libraries, devices, told)
    wrong = []
    for draw in range(DRAWS):
        feeds = program.feeds(graph, draw)
        given = [feeds[v.name] for v in graph.inputs]
        got = watch.run(given)
        told("the linked library")
        _threads(2)
        linked = _called(_machine(libraries[V3]), given, lowered)
        for (name, _), a, b in zip(graph.outputs, got, linked, strict=True):
            _same(a, b, f"{name}: the linked library and its kernels one by one")
        told("the reference")
        faults = _numbers(graph, feeds, got, counts)
        wrong += [faults] if faults else []
        if not faults:
            break
    if len(wrong) > 1:
        raise Found("numbers", wrong[0])


def _numbers(graph: Any, feeds: Any, got: Sequence[np.ndarray], counts: dict[str, float]) -> str:
    """What is not near enough, or ""."""
    faults = []
    for (name, v), found, want in zip(graph.outputs, got, oracle.expected(graph, feeds), strict=True):
        wrong = want.wrong(found)
        counts["elements"] += wrong.size
        counts["sure"] += int(want.sure.sum())
        if wrong.any():
            at = tuple(int(i) for i in np.argwhere(wrong)[0])
            what = f"{name} {v.type}: {int(wrong.sum())} of {wrong.size} wrong"
            faults.append(f"{what}; at {list(at)} {found[at]}, not {want.value[at]} within {want.bound[at]:.3g}")
    return "; ".join(faults)


def _library(lowered: Any, name: str, told: Callable[[str], None]) -> Any:
    """The linked library of ``lowered``, scheduled for the target that ``name`` names, in instructions of v3."""
    told(f"compiling for {name}")
    aimed = attrs.evolve(schedules.TARGETS[name.removesuffix(CHECKED)], functions=elementary.STEPS)
    target = objects.hosted(schedules.TARGETS[V3].tvm)
    with bounds.checked() if name.endswith(CHECKED) else nullcontext():
        parts = [
            objects.compile_part(p, target, lambda f, _: schedules.first(f, aimed)) for p in objects.parts(lowered)
        ]
    made = objects.join(lowered, target, parts)
    for kernel in made.kernels:
        if not kernel.rule or kernel.failures:
            raise Found("no rule", f"{kernel.kernel} for {name}: {kernel.rule or 'none'}, {kernel.failures}")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "phases.so"
        path.write_bytes(shared_library.library(made, "x86_64"))
        return tvm.runtime.load_module(str(path))


def _devices(lowered: Any, told: Callable[[str], None]) -> dict[str, tuple[str, Any]]:
    """Program -> the rule that took it for a GPU, and its text compiled for the CPU."""
    aimed, made = attrs.evolve(schedules.TARGETS[GPU], functions=elementary.STEPS), {}
    for name, func in lowered.programs.items():
        told(f"compiling {name} for {GPU}")
        done = schedules.first(func, aimed)
        if done.func is None or done.failures:
            raise Found("no rule", f"{name} for {GPU}: {done.rule or 'none'}, {done.failures}")
        made[name] = done.rule, emulator.compile(done.func, GPU)
    return made


class Watch:
    """Every kernel of a module, called with its tensors kept apart, in every way there is."""

    def __init__(self, lowered: Any, libraries: Any, devices: Any, told: Callable[[str], None]) -> None:
        self.lowered, self.libraries, self.devices, self.told = lowered, libraries, devices, told
        self.found: list[Found] = []

    def run(self, given: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The program's outputs, from a virtual machine that has no kernels and asks for them by name."""
        builder = relax.ExecBuilder()
        relax.vm_build._vmcodegen(builder, self.lowered.module)
        for name, func in self.lowered.programs.items():
            tvm_ffi.register_global_func(name, self.kernel(name, func), override=True)
        try:
            return _called(_machine(builder.get()), given, self.lowered)
        except Exception:
            if self.found:  # the virtual machine makes an error of its own of it
                raise self.found[0] from None
            raise
        finally:
            for name in self.lowered.programs:
                tvm_ffi.registry.remove_global_func(name)

    def kernel(self, name: str, func: Any) -> Callable[..., None]:
        types = [(tuple(map(int, p.shape)), str(p.dtype)) for p in func.params]
        stored = [store.buffer for store in collect(func.body, tirx.BufferStore)]
        written = [n for n, p in enumerate(func.params) if any(p.same_as(buffer) for buffer in stored)]

        def call(*tensors: Any) -> None:
            try:
                watched(*tensors)
            except Found as found:
                self.found.append(found)
                raise

        def watched(*tensors: Any) -> None:
            arrays = [_seen(t, *type) for t, type in zip(tensors, types, strict=True)]
            first: list[np.ndarray] = []
            for target, threads in WAYS:
                way = f"{name} by the schedule for {target} on {threads} threads"
                self.told(way)
                _threads(threads)
                left = _guarded(self.libraries[target].get_function(name, True), arrays, written, way)
                for n, a, b in zip(written, first or left, left, strict=True):
                    _same(a, b, f"{way}, parameter {n} {types[n]}")
                first = first or left
            if name in self.devices:
                self.device(name, arrays, written, first)
            for n, result in zip(written, first, strict=True):
                arrays[n][...] = result

        return call

    def device(self, name: str, arrays: list[np.ndarray], written: list[int], want: list[np.ndarray]) -> None:
        rule, kernel = self.devices[name]
        way = f"{name} by {rule} for {GPU}"
        self.told(way)
        left = kernel.every_order(*arrays)
        for n, w in zip(written, want, strict=True):
            if rule != UNITS:
                _same(w, left[n], f"{way}, parameter {n}")
            else:  # sums in another order, and a result of bfloat16 rounded apart: a unit of the largest
                a, b = w.astype("float64"), left[n].astype("float64")
                if not np.allclose(a, b, 2.0**-7, 2.0**-7 * np.abs(a).max(initial=0.0), equal_nan=True):
                    raise Found("numbers", f"{way}, parameter {n}: not near the CPU's")


def _guarded(kernel: Any, arrays: list[np.ndarray], written: list[int], way: str) -> list[np.ndarray]:
    """What ``kernel`` leaves in the parameters ``written``. One memory that is given twice stays one."""
    places: dict[int, emulator.Guarded] = {}
    for n, array in enumerate(arrays):
        if array.ctypes.data not in places:
            content = None if n in written else np.frombuffer(array.tobytes(), "uint8")
            places[array.ctypes.data] = emulator.Guarded.make((array.nbytes,), "uint8", content, ALIGNED)
    given = [places[a.ctypes.data] for a in arrays]
    kernel(*(g.tensor._create_view(a.shape, str(a.dtype)) for g, a in zip(given, arrays, strict=True)))
    for n, (place, array) in enumerate(zip(given, arrays, strict=True)):
        if not place.untouched():
            raise Found("memory", f"{way} writes outside of parameter {n} {array.dtype}{list(array.shape)}")
        apart = not any(arrays[w].ctypes.data == array.ctypes.data for w in written)
        if apart and place.array.tobytes() != array.tobytes():
            raise Found("memory", f"{way} writes over parameter {n}, which it only reads")
    return [given[n].array.copy().view(arrays[n].dtype).reshape(arrays[n].shape) for n in written]


def _seen(tensor: Any, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """The memory of ``tensor``, a block at least as large, as an array."""
    kind = np.dtype(dtype)
    size = int(np.prod(shape, dtype="int64")) * kind.itemsize
    memory = (ctypes.c_uint8 * size).from_address(tensor.data_ptr())
    return np.frombuffer(memory, "uint8").view(kind).reshape(shape)


def _machine(module: Any) -> Any:
    cpu: Any = tvm.cpu()
    return relax.VirtualMachine(module, cpu)


def _called(machine: Any, given: Sequence[np.ndarray], lowered: Any) -> list[np.ndarray]:
    """All outputs of the function, those that it left in its inputs' memory too."""
    tensors = [tvm.runtime.tensor(x) for x in given]
    returned = [y.numpy() for y in machine["main"](*tensors)]
    for output, written in sorted(lowered.in_place.get("main", ())):
        returned.insert(output, tensors[written].numpy())
    return returned


def _threads(count: int) -> None:
    tvm.get_global_func("runtime.config_threadpool")(1, count)


def _same(a: np.ndarray, b: np.ndarray, what: str) -> None:
    differ = bits(a) != bits(b)
    if differ.any():
        at = tuple(int(i) for i in np.argwhere(differ)[0])
        raise Found("bits", f"{what}: {int(differ.sum())} of {differ.size} differ, at {list(at)} {a[at]} and {b[at]}")
