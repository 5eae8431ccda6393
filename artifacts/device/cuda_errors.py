"""The table of CUDA's error numbers and what each means for a run.

Driver and runtime library share the numbers, but not the names; both are in cuda.h and driver_types.h, which a test
compares with this table. A number that is not here counts as fatal: nothing that the GPU may hold is trusted.
"""

from __future__ import annotations

from attrs import frozen

from ..base.errors import (
    DEVICE_BUSY,
    DEVICE_CALL,
    DEVICE_DRIVER,
    DEVICE_FULL,
    DEVICE_LOST,
    DEVICE_NONE,
    DEVICE_OLD,
    Code,
)


@frozen
class Status:
    """``driver`` and ``runtime``: its names, "" where one of the two has none. ``hint``: "" for the code's own."""

    number: int
    driver: str
    runtime: str
    code: Code
    hint: str = ""


NEWER = "install a newer driver"
PTX = "the driver compiles these kernels, and does not know their PTX: install a newer one"
SHARES = "look at the service that shares the GPU between processes (nvidia-cuda-mps-control)"
OWN_KERNELS = "or build with a target that has this GPU's own kernels"

STATUSES = (
    Status(2, "CUDA_ERROR_OUT_OF_MEMORY", "cudaErrorMemoryAllocation", DEVICE_FULL),
    Status(100, "CUDA_ERROR_NO_DEVICE", "cudaErrorNoDevice", DEVICE_NONE),
    # Others have the GPU, or what has to run beside the driver is not up yet.
    Status(46, "CUDA_ERROR_DEVICE_UNAVAILABLE", "cudaErrorDevicesUnavailable", DEVICE_BUSY),
    Status(802, "CUDA_ERROR_SYSTEM_NOT_READY", "cudaErrorSystemNotReady", DEVICE_BUSY),
    Status(805, "CUDA_ERROR_MPS_CONNECTION_FAILED", "cudaErrorMpsConnectionFailed", DEVICE_BUSY, SHARES),
    Status(806, "CUDA_ERROR_MPS_RPC_FAILURE", "cudaErrorMpsRpcFailure", DEVICE_BUSY, SHARES),
    Status(807, "CUDA_ERROR_MPS_SERVER_NOT_READY", "cudaErrorMpsServerNotReady", DEVICE_BUSY, SHARES),
    Status(808, "CUDA_ERROR_MPS_MAX_CLIENTS_REACHED", "cudaErrorMpsMaxClientsReached", DEVICE_BUSY, SHARES),
    Status(809, "CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED", "cudaErrorMpsMaxConnectionsReached", DEVICE_BUSY, SHARES),
    Status(919, "CUDA_ERROR_FABRIC_NOT_READY", "cudaErrorFabricNotReady", DEVICE_BUSY),
    # The driver is too old for what is asked of it, or not all there.
    Status(35, "", "cudaErrorInsufficientDriver", DEVICE_OLD, NEWER),
    Status(36, "CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER", "cudaErrorCallRequiresNewerDriver", DEVICE_OLD, NEWER),
    Status(222, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION", "cudaErrorUnsupportedPtxVersion", DEVICE_OLD, PTX),
    Status(227, "CUDA_ERROR_INSUFFICIENT_LOADER_VERSION", "cudaErrorInsufficientLoaderVersion", DEVICE_OLD, NEWER),
    Status(34, "CUDA_ERROR_STUB_LIBRARY", "cudaErrorStubLibrary", DEVICE_DRIVER,
           "the libcuda that was found is a toolkit's stub, to link with: look at LD_LIBRARY_PATH"),
    Status(221, "CUDA_ERROR_JIT_COMPILER_NOT_FOUND", "cudaErrorJitCompilerNotFound", DEVICE_DRIVER,
           f"install the driver's compiler of PTX, libnvidia-ptxjitcompiler, {OWN_KERNELS}"),
    Status(223, "CUDA_ERROR_JIT_COMPILATION_DISABLED", "cudaErrorJitCompilationDisabled", DEVICE_DRIVER,
           f"unset CUDA_DISABLE_PTX_JIT, {OWN_KERNELS}"),
    # What the call itself got wrong, or may not do during a capture: the context is as it was.
    *(Status(number, f"CUDA_ERROR_{driver}", f"cudaError{runtime}", DEVICE_CALL) for number, driver, runtime in (
        (1, "INVALID_VALUE", "InvalidValue"),
        (500, "NOT_FOUND", "SymbolNotFound"),
        (701, "LAUNCH_OUT_OF_RESOURCES", "LaunchOutOfResources"),
        (801, "NOT_SUPPORTED", "NotSupported"),
        (900, "STREAM_CAPTURE_UNSUPPORTED", "StreamCaptureUnsupported"),
        (901, "STREAM_CAPTURE_INVALIDATED", "StreamCaptureInvalidated"),
        (902, "STREAM_CAPTURE_MERGE", "StreamCaptureMerge"),
        (903, "STREAM_CAPTURE_UNMATCHED", "StreamCaptureUnmatched"),
        (904, "STREAM_CAPTURE_UNJOINED", "StreamCaptureUnjoined"),
        (905, "STREAM_CAPTURE_ISOLATION", "StreamCaptureIsolation"),
        (906, "STREAM_CAPTURE_IMPLICIT", "StreamCaptureImplicit"),
        (907, "CAPTURED_EVENT", "CapturedEvent"),
        (908, "STREAM_CAPTURE_WRONG_THREAD", "StreamCaptureWrongThread"),
    )),
    Status(9, "", "cudaErrorInvalidConfiguration", DEVICE_CALL),
)  # fmt: skip
NUMBERED = {status.number: status for status in STATUSES}
_NAMED = {name: status for status in STATUSES for name in (status.driver, status.runtime) if name}


def meaning(name: str) -> tuple[Code, str]:
    """(code, hint) of an error by either of its names; "" for a failure that is none of CUDA's."""
    if not name:
        return DEVICE_CALL, ""
    status = _NAMED.get(name)
    return (status.code, status.hint) if status else (DEVICE_LOST, "")
