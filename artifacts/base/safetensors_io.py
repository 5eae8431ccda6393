"""dtypes, aligned arrays, and safetensors files.

Files are written piece by piece. They are read by our own checks of the header first, then by the official library.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from . import canonical_json
from .errors import ENV_PACKAGE, RunError, shown

if TYPE_CHECKING:
    import numpy as np

# our name -> (NumPy's name, safetensors' name, bytes an element)
DTYPES: dict[str, tuple[str, str, int]] = {
    "f32": ("float32", "F32", 4),
    "bf16": ("bfloat16", "BF16", 2),
    "f16": ("float16", "F16", 2),
    "f64": ("float64", "F64", 8),
    "i8": ("int8", "I8", 1),
    "u8": ("uint8", "U8", 1),
    "i32": ("int32", "I32", 4),
    "u32": ("uint32", "U32", 4),
    "i64": ("int64", "I64", 8),
    "bool": ("bool", "BOOL", 1),
}
OF_NUMPY = {numpy: name for name, (numpy, _, _) in DTYPES.items()}
OF_SAFETENSORS = {file_name: name for name, (_, file_name, _) in DTYPES.items()}
# The least and the greatest value of each integer dtype.
INTEGERS = {
    "i8": (-(2**7), 2**7 - 1),
    "u8": (0, 2**8 - 1),
    "i32": (-(2**31), 2**31 - 1),
    "u32": (0, 2**32 - 1),
    "i64": (-(2**63), 2**63 - 1),
}
FLOATS = ("f32", "bf16", "f16", "f64")
ALIGNMENT = 64
MAX_HEADER, MAX_TENSORS, MAX_NBYTES = 16 * 2**20, 100_000, 2**63 - 1
NAME = re.compile(r"[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)*")


def name_allowed(name: str) -> bool:
    """Whether ``name`` may be a tensor's name: parts of letters, digits and ``_ . -`` with slashes between, none is
    .."""
    return NAME.fullmatch(name) is not None and ".." not in name.split("/")


class BadTensors(ValueError):
    """The bytes are not a safetensors file that is accepted; the message is for the user."""


def dtype(name: str) -> np.dtype:
    """NumPy's dtype of our dtype ``name`` (ml_dtypes is imported only for bf16)."""
    import numpy as np

    if name == "bf16":
        try:
            import ml_dtypes
        except ImportError as error:
            raise RunError(ENV_PACKAGE, f"bf16 needs ml_dtypes: {error}", hint="pip install ml_dtypes") from None
        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(DTYPES[name][0])


def dtype_name(array: np.ndarray) -> str:
    """Our name of ``array``'s dtype, or NumPy's where we have none (a byte-swapped one has its own)."""
    if array.dtype.byteorder == ">":
        return str(array.dtype.str)
    name = array.dtype.name  # NumPy makes it anew each time
    return OF_NUMPY.get(name, name)


def aligned(shape: tuple[int, ...], name: str) -> np.ndarray:
    """An uninitialised array of our dtype ``name`` whose data starts at a multiple of ALIGNMENT bytes."""
    import numpy as np

    nbytes = math.prod(shape) * DTYPES[name][2]
    raw = np.empty(nbytes + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + nbytes].view(dtype(name)).reshape(shape)


# The official library's order of dtypes, in which it writes tensors; those of one dtype by name.
ORDER = ("i64", "f64", "f32", "u32", "i32", "bf16", "f16", "i8", "u8", "bool")


def parts(tensors: Mapping[str, np.ndarray]) -> list[Any]:
    """The safetensors bytes of ``tensors`` as the official library writes them, without metadata: the header, then the
    arrays themselves: a file is as large as the weights, and only an array that is not contiguous is copied."""
    import numpy as np

    kinds = {name: (ORDER.index(dtype_name(array)), name) for name, array in tensors.items()}
    header, data, at = {}, [], 0
    for name in sorted(tensors, key=kinds.__getitem__):
        array = np.ascontiguousarray(tensors[name]).reshape(-1).view(np.uint8)
        spans = [at, at + array.nbytes]
        kind = DTYPES[dtype_name(tensors[name])][1]
        header[name] = {"dtype": kind, "shape": list(tensors[name].shape), "data_offsets": spans}
        data.append(array.data)
        at += array.nbytes
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return [struct.pack("<Q", len(text)) + text, *data]


def dump(tensors: Mapping[str, np.ndarray]) -> bytes:
    """The bytes of a safetensors file: those of ``parts``, in one piece."""
    return b"".join(parts(tensors))


def load(data: bytes) -> dict[str, np.ndarray]:
    """name -> read-only array of the safetensors ``data``; BadTensors when they are not whole and plain."""
    import numpy as np

    try:
        from safetensors import SafetensorError, deserialize
    except ImportError as error:
        hint = "pip install safetensors"
        raise RunError(ENV_PACKAGE, f"safetensors cannot be imported: {error}", hint=hint) from None
    check(data)
    try:
        entries = deserialize(data)
    except SafetensorError as error:
        raise BadTensors(f"not safetensors: {error}") from None
    out = {}
    for name, entry in entries:
        kind = dtype(OF_SAFETENSORS[entry["dtype"]])
        out[name] = np.frombuffer(entry["data"], kind).reshape(entry["shape"])
    return out


def check(data: bytes) -> dict[str, Any]:
    """The header of ``data``, once every name, dtype, size and offset in it is right and the whole file is covered."""
    header = parse_header(data[8 : 8 + header_size(data[:8], len(data))])
    spans = sorted(span(name, entry) for name, entry in header.items())
    at, end = 0, len(data) - 8 - struct.unpack_from("<Q", data)[0]
    for start, stop, name in spans:
        if start != at:
            raise BadTensors(f"{name} {'overlaps another tensor' if start < at else 'leaves a hole before it'}")
        at = stop
    if at != end:
        raise BadTensors(
            f"cut short: {end} data bytes of {at}" if end < at else f"{end - at} bytes after the last tensor"
        )
    return header


def header_size(first: bytes, total: int) -> int:
    """Bytes of the header of a file of ``total`` bytes whose first eight are ``first``."""
    if len(first) < 8:
        raise BadTensors(f"{len(first)} bytes are too few for safetensors")
    size = struct.unpack("<Q", first)[0]
    if size > MAX_HEADER:
        raise BadTensors(f"its header is {size} bytes; the limit is {MAX_HEADER}")
    if size > total - 8:
        raise BadTensors(f"cut short: its header of {size} bytes ends after the file")
    return size


def parse_header(text: bytes) -> dict[str, Any]:
    """Tensor entries by name, without the metadata."""
    try:
        header = canonical_json.loads(text)
    except canonical_json.Malformed as error:
        raise BadTensors(f"its header: {error}") from None
    if not isinstance(header, dict):
        raise BadTensors("its header is not an object")
    header.pop("__metadata__", None)
    if len(header) > MAX_TENSORS:
        raise BadTensors(f"{len(header)} tensors; the limit is {MAX_TENSORS}")
    return header


def span(name: str, entry: Any) -> tuple[int, int, str]:
    """(start, stop, name) of a header entry, its byte count agreeing with its dtype and shape."""
    quoted = json.dumps(name[:80])
    if not name_allowed(name):
        raise BadTensors(f"the tensor name {quoted} is not allowed")
    shape, offsets = entry_shape(name, entry), entry["data_offsets"]
    if entry["dtype"] not in OF_SAFETENSORS:
        raise BadTensors(f"{quoted} has the dtype {shown(entry['dtype'], 20)}, which is not read")
    size = DTYPES[OF_SAFETENSORS[entry["dtype"]]][2]
    if math.prod(n or 1 for n in shape) * size > MAX_NBYTES:  # of no elements, too, it has to have strides
        raise BadTensors(f"{quoted} has a shape that is too large for memory's addresses")
    nbytes = math.prod(shape) * size
    if offsets[1] - offsets[0] != nbytes:
        raise BadTensors(f"{quoted} takes {nbytes} bytes, its offsets give {offsets[1] - offsets[0]}")
    return offsets[0], offsets[1], name


def entry_shape(name: str, entry: Any) -> tuple[int, ...]:
    """The shape in a header entry that has all that an entry has, each of its kind."""
    quoted = json.dumps(name[:80])
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise BadTensors(f"{quoted} does not have dtype, shape and data_offsets")
    if not isinstance(entry["dtype"], str):
        raise BadTensors(f"{quoted} has a dtype that is no name")
    shape, offsets = entry["shape"], entry["data_offsets"]
    if not _naturals(shape) or not _naturals(offsets) or len(offsets) != 2 or len(shape) > 8:
        raise BadTensors(f"{quoted} has a shape or offsets that are not natural numbers")
    return tuple(shape)


def end_of(header: Mapping[str, Any]) -> int:
    """The end of the last tensor of ``header``, among those with valid offsets."""
    spans: list[Any] = [entry.get("data_offsets") for entry in header.values() if isinstance(entry, dict)]
    return max((at[1] for at in spans if _naturals(at) and len(at) == 2), default=0)


def _naturals(value: Any) -> bool:
    return isinstance(value, list) and all(type(n) is int and n >= 0 for n in value)
