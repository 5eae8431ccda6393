"""CUDA's runtime library through ctypes: the functions that the runner needs beside those that TVM's runtime calls."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from ..base.errors import ENV_LIBRARY, RunError
from .cuda_driver import RUNTIME
from .cuda_errors import meaning
from .pinned_staging import Staging

Result = TypeVar("Result")
NAME = "libcudart.so.13"
TO_DEVICE, TO_HOST, ON_DEVICE = 1, 2, 3  # cudaMemcpyKind
NON_BLOCKING = 1  # a stream that does not wait for the default one
# An event without timing, on which the host sleeps: a spinning core would be missing for the data thread.
EVENT_FLAGS = 1 | 2  # cudaEventBlockingSync | cudaEventDisableTiming
# Other calls of this thread stay allowed during a capture; memory that a call needs is really allocated.
RELAXED = 2
MAX_IN_FLIGHT = 2  # calls of phases that may be queued in the stream

_ERROR_NAME = re.compile(r"\b(cudaError[A-Z]\w+|CUDA_ERROR_[A-Z_0-9]+)\b")


def fault(what: str, text: str) -> RunError:
    """The coded error of a failure whose message is ``text``."""
    name = _ERROR_NAME.search(text)
    code, hint = meaning(name.group() if name else "")
    return RunError(code, f"{what}: {text}", hint=hint)


def folders() -> list[Path]:
    """Where a wheel of the extra ``gpu`` may have put the library."""
    spec = find_spec("nvidia")
    return [Path(folder) / "cu13" / "lib" for folder in (spec.submodule_search_locations or ())] if spec else []


def load(where: str) -> ctypes.CDLL:
    """The library: of the wheel, else the system's; E-ENV-011 where there is neither."""
    paths = [str(folder / NAME) for folder in folders() if (folder / NAME).is_file()]
    try:
        return ctypes.CDLL((paths or [NAME])[0], ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise RunError(ENV_LIBRARY, f"CUDA's runtime cannot be loaded: {error}", where, RUNTIME) from None


_POINTER, _SIZE, _INT = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
_ARGUMENTS = {
    "cudaSetDevice": (_INT,),
    "cudaStreamCreateWithFlags": (_POINTER, ctypes.c_uint),
    "cudaStreamSynchronize": (_POINTER,),
    "cudaMemcpyAsync": (_POINTER, _POINTER, _SIZE, _INT, _POINTER),
    "cudaMemsetAsync": (_POINTER, _INT, _SIZE, _POINTER),
    "cudaMallocHost": (_POINTER, _SIZE),
    "cudaEventCreateWithFlags": (_POINTER, ctypes.c_uint),
    "cudaEventRecord": (_POINTER, _POINTER),
    "cudaEventSynchronize": (_POINTER,),
    "cudaMemGetInfo": (_POINTER, _POINTER),
    "cudaStreamBeginCapture": (_POINTER, _INT),
    "cudaStreamEndCapture": (_POINTER, _POINTER),
    "cudaGraphInstantiate": (_POINTER, _POINTER, ctypes.c_ulonglong),
    "cudaGraphGetNodes": (_POINTER, _POINTER, _POINTER),
    "cudaGraphLaunch": (_POINTER, _POINTER),
    "cudaGraphDestroy": (_POINTER,),
    "cudaGraphExecDestroy": (_POINTER,),
    "cudaGetLastError": (),
}


class Stream:
    """A stream of work on one GPU: the kernels of phases, copies and graphs of a run are all in this one, in order."""

    def __init__(self, library: ctypes.CDLL, number: int) -> None:
        self._library = library
        for name, types in _ARGUMENTS.items():
            getattr(library, name).argtypes = types
        library.cudaGetErrorName.restype = ctypes.c_char_p
        library.cudaGetErrorString.restype = ctypes.c_char_p
        self.call("cudaSetDevice", number)
        self.handle = self._create("cudaStreamCreateWithFlags", NON_BLOCKING)
        self._events = [self.event() for _ in range(MAX_IN_FLIGHT)]  # after the last pieces of work
        self._pieces = 0
        self._end = self.event()
        self.staging = Staging(self)

    def _create(self, function: str, *arguments: Any) -> int:
        out = ctypes.c_void_p()
        self.call(function, ctypes.byref(out), *arguments)
        return out.value or 0

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function of the library; the coded error of ``fault`` if it fails."""
        status = getattr(self._library, name)(*arguments)
        if status:
            word, text = (f(status) or b"" for f in (self._library.cudaGetErrorName, self._library.cudaGetErrorString))
            raise fault(name, f"{word.decode()}: {text.decode()}")

    def paced(self, work: Callable[[], Result]) -> Result:
        """Queue ``work``, once all but the last MAX_IN_FLIGHT - 1 pieces before it are done. So the host is never far
        ahead of the GPU, and what it checks between two pieces, such as a signal, is seen in time; and the GPU always
        finds the next piece queued."""
        event = self._events[self._pieces % MAX_IN_FLIGHT]
        if self._pieces >= MAX_IN_FLIGHT:
            self.wait_for(event)
        result = work()
        self.record(event)
        self._pieces += 1
        return result

    def event(self) -> int:
        return self._create("cudaEventCreateWithFlags", EVENT_FLAGS)

    def record(self, event: int) -> None:
        """Record ``event`` at the end of the work queued so far."""
        self.call("cudaEventRecord", event, self.handle)

    def wait_for(self, event: int) -> None:
        """Wait until the work before ``event`` is done."""
        self.call("cudaEventSynchronize", event)

    def page_locked(self, nbytes: int) -> int:
        """The address of new page-locked host memory, which the GPU accesses directly; it is never freed."""
        return self._create("cudaMallocHost", nbytes)

    def to_device(self, to: int, source: int, nbytes: int) -> None:
        """Queue a copy from page-locked memory, which is read when the copy runs."""
        self.call("cudaMemcpyAsync", to, source, nbytes, TO_DEVICE, self.handle)

    def to_host(self, to: int, source: int, nbytes: int) -> None:
        """Queue a copy to page-locked memory, which is written when the copy runs."""
        self.call("cudaMemcpyAsync", to, source, nbytes, TO_HOST, self.handle)

    def on_device(self, to: int, source: int, nbytes: int) -> None:
        self.call("cudaMemcpyAsync", to, source, nbytes, ON_DEVICE, self.handle)

    def zero(self, to: int, nbytes: int) -> None:
        self.call("cudaMemsetAsync", to, 0, nbytes, self.handle)

    def wait(self) -> None:
        """Wait until all queued work is done."""
        self.record(self._end)
        self.wait_for(self._end)

    def wait_for_default(self) -> None:
        """Wait for TVM's work in the default stream: the library's constants are copied there."""
        self.call("cudaStreamSynchronize", None)

    def free(self) -> int:
        """Bytes of the GPU's memory that are free."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.call("cudaMemGetInfo", ctypes.byref(free), ctypes.byref(total))
        return free.value

    def last_error(self) -> int:
        """The last failure of any call since this was asked, 0 for none."""
        return self._library.cudaGetLastError()

    def begin(self) -> None:
        """Begin a capture: work is recorded and not executed."""
        self.call("cudaStreamBeginCapture", self.handle, RELAXED)

    def end(self) -> tuple[int, int]:
        """End the capture: (executable graph, its nodes)."""
        graph, executable, count = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_size_t()
        self.call("cudaStreamEndCapture", self.handle, ctypes.byref(graph))
        try:
            self.call("cudaGraphGetNodes", graph, None, ctypes.byref(count))
            self.call("cudaGraphInstantiate", ctypes.byref(executable), graph, 0)
        finally:
            self.call("cudaGraphDestroy", graph)
        return executable.value or 0, count.value

    def abandon(self) -> None:
        """End a capture that failed; there is no graph, and no error is left behind."""
        graph = ctypes.c_void_p()
        if self._library.cudaStreamEndCapture(self.handle, ctypes.byref(graph)) == 0 and graph:
            self._library.cudaGraphDestroy(graph)
        self.last_error()

    def launch(self, graph: int, number: tuple[Any, int] | None = None) -> None:
        """``number``: an i64 scalar and what it is to be then."""

        def work() -> None:
            if number is not None:
                scalar, value = number
                self.staging.write(scalar.data_ptr(), np.array(value, np.int64))
            self.call("cudaGraphLaunch", graph, self.handle)

        self.paced(work)

    def destroy(self, graph: int) -> None:
        self.call("cudaGraphExecDestroy", graph)
