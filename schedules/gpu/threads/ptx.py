"""PTX instructions that CUDA C has no intrinsic for: ``mma.sync``, ``ldmatrix``, ``cp.async``.

Each is a device function in the kernel's text, of an instruction in inline assembly: PTX ISA 8.0, 9.7.9 (copies) and
9.7.13 (matrices). Shared memory is a buffer of halves: ``offset`` counts 16-bit elements. Within an ``mma`` NVIDIA
does not specify the order of the sum.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.ir import StringImm

from ...tir.builder import Call, Expr, Stmt, load
from .launch import WARP

_HEAD = "__forceinline__ __device__ "
_ADDRESS = '"r"((unsigned)__cvta_generic_to_shared(tile))'

# Names of device functions, by which copy_width and flops know their calls again: a copy's by its elements, the first
# part of a multiplication's.
_CALL, _COPIES, _MMA = "tirx.cuda.func_call", {n: f"cp_async_{n}" for n in (1, 2, 4, 8)}, "mma_m16n8k16_"

# PTX names of the operands' dtypes.
OPERAND_TYPES = {"bfloat16": "bf16", "float16": "f16"}

# Two float32 a and b as high and low 16-bit parts; those of a in the lower half of a register, as fragments have them.
# bfloat16 is cut off by a mask, not rounded: high is then finite for every finite a, and a - high is exact.
_SPLIT = {
    "bfloat16": (
        "unsigned x = __float_as_uint(a), y = __float_as_uint(b);",
        "high[j + r] = x >> 16 | (y & 0xffff0000u);",
        "x = __float_as_uint(a - __uint_as_float(x & 0xffff0000u));",
        "y = __float_as_uint(b - __uint_as_float(y & 0xffff0000u));",
        "low[k + r] = x >> 16 | (y & 0xffff0000u);",
    ),
    "float16": (
        "__half x = __float2half_rn(a), y = __float2half_rn(b);",
        "high[j + r] = __half_as_ushort(x) | (unsigned)__half_as_ushort(y) << 16;",
        "x = __float2half_rn(a - __half2float(x)), y = __float2half_rn(b - __half2float(y));",
        "low[k + r] = __half_as_ushort(x) | (unsigned)__half_as_ushort(y) << 16;",
    ),
}


def mma(acc: tuple[Any, Expr], a: tuple[Any, Expr], b: tuple[Any, Expr], dtype: str) -> Stmt:
    """``acc += a b`` of a warp, m16n8k16 in float32. Each is (buffer of registers, first of them): 4, 4 and 2 registers
    of each thread."""
    kind = OPERAND_TYPES[dtype]
    return _statement(
        _MMA + kind,
        "float* acc, int i, const unsigned* a, int j, const unsigned* b, int k",
        f'asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.{kind}.{kind}.f32 '
        '{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" '
        ': "+f"(acc[i]), "+f"(acc[i + 1]), "+f"(acc[i + 2]), "+f"(acc[i + 3]) '
        ': "r"(a[j]), "r"(a[j + 1]), "r"(a[j + 2]), "r"(a[j + 3]), "r"(b[k]), "r"(b[k + 1]));',
        *_pointer(*acc),
        *_pointer(*a),
        *_pointer(*b),
    )


def ldmatrix(registers: tuple[Any, Expr], tile: Any, offset: Expr, transposed: bool) -> Stmt:
    """Four matrices of 8 by 8 halves into four registers.

    Thread t gives the address of row t % 8 of matrix t / 8, which begins at ``offset``, and gets elements 2 (t % 4) and
    the next of row t / 4 of each matrix; ``transposed``: of column t / 4.
    """
    # The "memory" clobber: the compiler does not see that the instruction reads shared memory, and could otherwise move
    # it across a barrier.
    kind = ".trans" if transposed else ""
    return _statement(
        "ldmatrix_x4_trans" if transposed else "ldmatrix_x4",
        "unsigned* to, int i, const void* tile",
        f'asm volatile("ldmatrix.sync.aligned.m8n8.x4{kind}.shared.b16 {{%0, %1, %2, %3}}, [%4];" '
        f': "=r"(to[i]), "=r"(to[i + 1]), "=r"(to[i + 2]), "=r"(to[i + 3]) : {_ADDRESS} : "memory");',
        *_pointer(*registers),
        tirx.address_of(load(tile, offset)),
    )


def split(numbers: tuple[Any, Expr], high: tuple[Any, Expr], low: tuple[Any, Expr], dtype: str) -> Stmt:
    """Eight float32 as the sum of two halves each, in four registers of ``high`` and four of ``low``.

    So a float32 operand takes two ``mma`` instead of being rounded to 16 bits. The error is less than 2^-15 of the
    number for bfloat16, which truncates; for float16 at most 2^-22 of it, or 2^-25 absolute.
    """
    steps = "\n".join(f"    {line}" for line in _SPLIT[dtype])
    return _statement(
        f"split_high_low_{OPERAND_TYPES[dtype]}",
        "const float* from, int i, unsigned* high, int j, unsigned* low, int k",
        "#pragma unroll\n  for (int r = 0; r < 4; ++r) {\n"
        f"    float a = from[i + 2 * r], b = from[i + 2 * r + 1];\n{steps}\n  }}",
        *_pointer(*numbers),
        *_pointer(*high),
        *_pointer(*low),
    )


def cp_async(tile: Any, offset: Expr, source: Expr, width: int, valid: Expr) -> Stmt:
    """``width`` (8, 4, 2 or 1) halves from the address ``source`` to shared memory, zeros where it is not ``valid``.

    Other threads see them after ``wait_group`` and a barrier; a single half, for which there is no asynchronous copy,
    after a barrier.
    """
    if width == 1:
        code = "*(unsigned short*)tile = valid ? *(const unsigned short*)from : (unsigned short)0;"
    else:
        cache = "cg" if width == 8 else "ca"  # cg bypasses L1, as shared memory holds the tile; it takes 16 bytes only
        code = (
            f'asm volatile("cp.async.{cache}.shared.global [%0], [%1], {2 * width}, %2;" '
            f':: {_ADDRESS}, "l"(from), "r"(valid ? {2 * width} : 0) : "memory");'
        )
    arguments = "void* tile, const void* from, bool valid"
    return _statement(_COPIES[width], arguments, code, tirx.address_of(load(tile, offset)), source, valid)


def copy_width(expr: Expr) -> int:
    """Elements that ``cp_async`` copies at once; 1 for any other expression."""
    called = _name(expr)
    return next((width for width, name in _COPIES.items() if name == called), 1)


def flops(expr: Expr) -> int:
    """A thread's share of the multiplications and additions of ``mma``; 0 for any other expression."""
    return 2 * 16 * 8 * 16 // WARP if _name(expr).startswith(_MMA) else 0


def commit_group() -> Stmt:
    """The thread's copies since the last ``commit_group`` are a group."""
    return _statement("cp_async_commit", "", 'asm volatile("cp.async.commit_group;" ::: "memory");')


def wait_group(pending: int) -> Stmt:
    """Until all but the last ``pending`` groups of the thread have arrived."""
    return _statement(f"cp_async_wait_{pending}", "", f'asm volatile("cp.async.wait_group {pending};" ::: "memory");')


def syncwarp() -> Stmt:
    """``__syncwarp``: what a thread of the warp wrote to shared memory before, all its threads see after."""
    return tirx.Evaluate(tirx.call_extern("int32", "__syncwarp"))


def store_shared_pair(tile: Any, offset: Expr, values: tuple[Expr, Expr]) -> Stmt:
    """Two float32 into shared memory at the float32 ``offset``, which is even (a float2).

    TVM does not see a store in it, and so puts no barrier of the block after it: ``syncwarp`` is enough.
    """
    code = "*(float2*)((float*)tile + at) = make_float2(a, b);"
    return _statement(
        "store_shared_pair", "void* tile, int at, float a, float b", code, *_pointer(tile, offset), *values
    )


def load_shared(tile: Any, offset: Expr) -> Expr:
    """A float32 that ``store_shared_pair`` stored."""
    code = "return ((const float*)tile)[at];"
    return _call("float32", "float", "load_shared", "const void* tile, int at", code, *_pointer(tile, offset))


def _pointer(buffer: Any, offset: Expr) -> tuple[Expr, Expr]:
    """The buffer and an offset, not the element's address: from that, TVM would take the other elements for unused."""
    return buffer.data, offset


def _statement(name: str, parameters: str, code: str, *arguments: Expr) -> Stmt:
    return tirx.Evaluate(_call("void", "void", name, parameters, code, *arguments))


def _call(dtype: str, result: str, name: str, parameters: str, code: str, *arguments: Expr) -> Expr:
    text = f"{_HEAD}{result} {name}({parameters}) {{\n  {code}\n}}\n"
    return tirx.call_intrin(dtype, _CALL, StringImm(name), *arguments, StringImm(text))


def _name(expr: Expr) -> str:
    return str(expr.args[0].value) if isinstance(expr, Call) and expr.op.name == _CALL else ""
