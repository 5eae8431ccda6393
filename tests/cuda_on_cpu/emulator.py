"""Scheduled tensor programs, run on the CPU from the CUDA text that TVM makes of them."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import mmap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import attrs
import numpy as np
import tvm
import tvm_ffi

import schedules
from lowering.codegen.objects import CONFIG, prepare_for_codegen
from lowering.math import elementary

from . import compile as cuda

ORDERS = ("forward", "reverse", "hashed")
PAGE = mmap.PAGESIZE
GUARD = 1 << 20  # bytes before and behind a tensor that may not be touched
POISON = 0xFF  # NaN in every float type, -1 in every integer
ALIGNMENT, ON_DEVICE = 16, 256  # of tensors: as close to a page's end as vectors allow, and as a GPU has them
Array = np.ndarray


class KernelError(Exception):
    """A kernel did what a GPU would not do, or not always the same: its name, what, and where."""


class Launch(ctypes.Structure):
    _fields_ = (("blocks", ctypes.c_uint * 3), ("threads", ctypes.c_uint * 3), ("dynamic", ctypes.c_uint),
                ("order", ctypes.c_int))  # fmt: skip


class Entry(ctypes.Structure):
    """core.h's Kernel: a row of a library's table, of which only the name is read here."""

    _fields_ = (("name", ctypes.c_char_p), ("call", ctypes.c_void_p), ("parameters", ctypes.c_uint),
                ("sizes", ctypes.c_void_p), ("pointers", ctypes.c_void_p), ("shared", ctypes.c_void_p),
                ("shared_end", ctypes.c_void_p), ("max_threads", ctypes.c_uint), ("waits", ctypes.c_bool),
                ("sites", ctypes.c_void_p))  # fmt: skip


@functools.cache
def core() -> Any:
    """The launcher, loaded once."""
    ctypes.CDLL("libm.so.6", ctypes.RTLD_GLOBAL)  # kernels take what they need of it from the process
    library = ctypes.CDLL(str(cuda.core()))
    library.cuda_on_cpu_state.restype = ctypes.c_void_p
    return library


@attrs.frozen(eq=False)
class Text:
    """CUDA text that was compiled for the CPU and loaded."""

    source: str
    kernels: dict[str, tuple[cuda.Kernel, Any]]

    @classmethod
    def load(cls, source: str, mode: str = "") -> Text:
        """``mode``: of compile.MODES. Raises cuda.CompileError."""
        made = cuda.cached_library(source, mode)
        library = ctypes.CDLL(str(made))
        library.cuda_on_cpu_attach(ctypes.c_void_p(core().cuda_on_cpu_state()))
        found = cuda.kernels(source)
        table = (Entry * len(found)).in_dll(library, "cuda_on_cpu_kernels")
        return cls(source, {k.name: (k, (table[n], library)) for n, k in enumerate(found)})

    def launch(self, name: str, arguments: Sequence[Any], launch: Launch) -> None:
        """Run one kernel on ``arguments``: addresses and numbers. Raises KernelError."""
        kernel, (entry, _) = self.kernels[name]
        cells = [_cell(value, kind) for value, kind in zip(arguments, kernel.types, strict=True)]
        places = (ctypes.c_void_p * max(len(cells), 1))(*map(ctypes.addressof, cells))
        message = ctypes.create_string_buffer(512)
        if core().cuda_on_cpu_run(ctypes.byref(entry), places, ctypes.byref(launch), message, ctypes.c_ulong(512)):
            raise KernelError(message.value.decode())


SCALARS = {
    "int": ctypes.c_int32, "unsigned": ctypes.c_uint32, "unsigned int": ctypes.c_uint32, "uint": ctypes.c_uint32,
    "int64_t": ctypes.c_int64, "uint64_t": ctypes.c_uint64, "float": ctypes.c_float, "double": ctypes.c_double,
    "bool": ctypes.c_bool, "signed char": ctypes.c_int8, "uchar": ctypes.c_uint8, "short": ctypes.c_int16,
}  # fmt: skip


def _cell(value: Any, kind: str) -> Any:
    if kind.endswith("*"):
        return ctypes.c_void_p(getattr(value, "value", value))
    return SCALARS[kind](value)


@contextmanager
def _replaced(name: str, function: Callable[..., Any]) -> Iterator[None]:
    """A global function of TVM's, another one for a while."""
    before = tvm_ffi.get_global_func(name, allow_missing=True)
    tvm_ffi.register_global_func(name, function, override=True)
    try:
        yield
    finally:
        if before is None:
            tvm_ffi.registry.remove_global_func(name)
        else:
            tvm_ffi.register_global_func(name, before, override=True)


def cuda_text(module: Any, target: Any, build: Any) -> str:
    """The text that TVM's ``build`` (target.build.cuda) makes of device functions."""
    texts: list[str] = []

    def keep(text: str, _target: Any) -> str:
        texts.append(text)
        return text

    with _replaced("tvm_callback_cuda_postproc", keep):
        build(module, target)
    return texts[-1]


def _device(order: list[str], texts: list[Text], mode: str = "watched") -> Callable[..., Any]:
    """What stands for target.build.cuda: the kernels become global functions, which the host's code finds by name."""
    original = tvm_ffi.get_global_func("target.build.cuda")

    def build(module: Any, target: Any) -> None:
        text = Text.load(cuda_text(module, target, original), mode)
        texts.append(text)
        for _, func in module.functions_items():
            name = str(func.attrs["global_symbol"])
            tags = [str(t) for t in func.attrs["tirx.kernel_launch_params"]]
            tvm_ffi.register_global_func(name, _launcher(text, name, tags, order), override=True)

    return build


def _launcher(text: Text, name: str, tags: list[str], order: list[str]) -> Callable[..., None]:
    parameters = len(text.kernels[name][0].types)

    def call(*values: Any) -> None:
        shape = dict(zip(tags, map(int, values[parameters:]), strict=True))
        blocks, threads = ([shape.get(f"{kind}Idx.{axis}", 1) for axis in "xyz"] for kind in ("block", "thread"))
        launch = Launch((ctypes.c_uint * 3)(*blocks), (ctypes.c_uint * 3)(*threads))
        launch.dynamic = shape.get("tirx.use_dyn_shared_memory", 0)
        launch.order = ORDERS.index(order[0])
        text.launch(name, values[:parameters], launch)

    return call


@contextmanager
def in_place_of_cuda(order: str) -> Iterator[list[Text]]:
    """While TVM builds for ``tvm_target``: kernels become global functions, which the host's code finds by name."""
    texts: list[Text] = []
    with _replaced("target.build.cuda", _device([order], texts)):
        yield texts


def tvm_target(name: str) -> Any:
    """The target's CUDA with the host's code for this CPU, as if tensors were the CPU's."""
    device = {**schedules.TARGETS[name].tvm, "target_device_type": 1}
    device.pop("host", None)
    return tvm.target.Target(device).with_host(tvm.target.Target("llvm"))


@attrs.frozen(eq=False)
class Compiled:
    """A scheduled program whose kernels run on the CPU.

    ``text``   the CUDA text
    """

    text: str
    call: Any
    params: tuple[tuple[tuple[int, ...], str], ...]
    order: list[str]
    alignment: int = ALIGNMENT

    def run(self, *arrays: Array, order: str = "forward") -> list[Array]:
        """All parameters as they are after the call, in their order.

        ``arrays`` are the first of them; those left out begin as NaN, or -1. ``order``: in which the threads of a
        block, and the blocks, are taken. Raises KernelError where a kernel's threads part at a barrier, where nothing
        orders what two of them do to one byte, or where one leaves its tensors, its shared memory or its own arrays.
        """
        rest = [(shape, dtype, None) for shape, dtype in self.params[len(arrays) :]]
        given = [(a.shape, str(a.dtype), np.asarray(a, order="C")) for a in arrays]
        for (shape, dtype, _), want in zip(given, self.params, strict=False):
            assert (tuple(shape), dtype) == want, f"given {dtype}{list(shape)}, wanted {want}"
        tensors = [Guarded.make(*what, self.alignment) for what in [*given, *rest]]
        self.order[0] = order
        self.call(*(t.tensor for t in tensors))
        for n, tensor in enumerate(tensors):
            if not tensor.untouched():
                raise KernelError(f"something is stored around parameter {n}, outside of it")
        return [t.array.copy() for t in tensors]

    def every_order(self, *arrays: Array) -> list[Array]:
        """What ``run`` answers in all orders, which must be the same bits."""
        results = {order: self.run(*arrays, order=order) for order in ORDERS}
        for order in ORDERS[1:]:
            for n, (a, b) in enumerate(zip(results[ORDERS[0]], results[order], strict=True)):
                assert a.tobytes() == b.tobytes(), f"parameter {n} depends on the order of threads: {order}"
        return results[ORDERS[0]]


@attrs.frozen(eq=False)
class Guarded:
    """An array that ends where a page ends that may be touched, in poison; the next page may not be."""

    memory: Any
    array: Array
    tensor: Any
    around: tuple[Array, Array]

    @classmethod
    def make(cls, shape: Sequence[int], dtype: str, content: Array | None, alignment: int = ALIGNMENT) -> Guarded:
        kind = np.dtype(dtype)
        size = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
        room = -(-max(size, 1) // PAGE) * PAGE
        memory = mmap.mmap(-1, room + 2 * GUARD)
        whole = np.frombuffer(memory, np.uint8)
        libc = ctypes.CDLL(None)
        for guard in (0, room + GUARD):
            assert not libc.mprotect(ctypes.c_void_p(whole.ctypes.data + guard), ctypes.c_size_t(GUARD), 0)
        end = GUARD + room
        begin = end - -(-size // alignment) * alignment
        whole[GUARD:end] = POISON
        inside = whole[begin : begin + size]
        array = inside.view(kind).reshape(shape)
        if content is not None:
            array[...] = content
        tensor = tvm_ffi.from_dlpack(inside, require_alignment=1)._create_view(tuple(shape), dtype)
        return cls(memory, array, tensor, (whole[GUARD:begin], whole[begin + size : end]))

    def untouched(self) -> bool:
        return all(bool((part == POISON).all()) for part in self.around)


def text(
    source: str,
    *arrays: Array,
    blocks: int = 1,
    threads: int = 32,
    dynamic: int = 0,
    order: str = "forward",
    mode: str = "",
) -> list[Array]:
    """The arrays as the one kernel of CUDA text ``source`` leaves them, in a single launch. Raises KernelError; in the
    ``mode`` "watched" for a race too."""
    loaded = Text.load(source, mode)
    (name,) = loaded.kernels
    guarded = [Guarded.make(a.shape, str(a.dtype), a) for a in map(np.ascontiguousarray, arrays)]
    shape = ((ctypes.c_uint * 3)(n, 1, 1) for n in (blocks, threads))
    loaded.launch(name, [g.array.ctypes.data for g in guarded], Launch(*shape, dynamic, ORDERS.index(order)))
    assert all(g.untouched() for g in guarded)
    return [g.array.copy() for g in guarded]


def compile(func: Any, target: str = "cuda-sm_80", synced: bool = False, mode: str = "watched") -> Compiled:
    """``func``, whose loops are bound to blocks and threads, for ``run``. Several launches and global scratch of its
    own are allowed. Its barriers are those that it has; TVM adds those that it misses only to a schedule that is to be
    ``synced``. Raises cuda.CompileError."""
    elementary.install()
    digest = hashlib.sha256(tvm.ir.save_json(func).encode()).hexdigest()[:12]
    name = f"run_{digest}"  # the names of kernels begin with it, and global functions have one name space
    order, texts, made_for = ["forward"], [], tvm_target(target)
    module = prepare_for_codegen(tvm.IRModule({name: func.with_attr("global_symbol", name)}), made_for)
    passes = tvm.transform.PassContext(config=CONFIG, disabled_pass=[] if synced else ["s_tir.ThreadSync"])
    with made_for, passes, _replaced("target.build.cuda", _device(order, texts, mode)):
        library = tvm.compile(module, target=made_for)
    if not texts:
        raise KernelError("no loop of the program is bound to threads")
    params = tuple((tuple(map(int, p.shape)), str(p.dtype)) for p in func.params)
    alignment = ON_DEVICE if mode == "counted" else ALIGNMENT
    return Compiled(texts[0].source, library[name], params, order, alignment)


def run(
    func: Any, *arrays: Array, order: str = "forward", target: str = "cuda-sm_80", synced: bool = False
) -> list[Array]:
    """``compile(func, target).run(*arrays, order=order)``: all parameters after the call, the given ones first."""
    return compile(func, target, synced).run(*arrays, order=order)
