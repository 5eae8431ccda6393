"""CUDA text to the bytes of a shared object for this CPU, by the clang of the pinned ziglang wheel: no CUDA, no C
library's headers, no network. Cached by content."""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import platform
import re
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path

import attrs

from . import assembly

HERE = Path(__file__).parent
CORE = ("core.cc", "races.cc", "counts.cc")
CACHE = "SEXPGPU_CUDA_ON_CPU_CACHE"  # a folder; default: one of this user's in the temporary directory
TRIPLES = {"x86_64": "x86_64-linux-gnu", "aarch64": "aarch64-linux-gnu"}
COMMON = (
    "-O1",
    "-fPIC",
    "-std=c++17",
    "-fno-exceptions",
    "-fno-rtti",
    "-fno-threadsafe-statics",
    "-fno-stack-protector",
)
# For kernels: casts between pointers are everywhere in the text; conversions to integers saturate and sums of integers
# wrap, as the device's do; no multiplication and addition are joined that the text does not join; what is used before
# it is set is a NaN; an index outside of a local or shared array traps.
KERNELS = (
    "-fno-strict-aliasing", "-fno-strict-float-cast-overflow", "-fwrapv", "-ffp-contract=off",
    "-ftrivial-auto-var-init=pattern", "-fsanitize=array-bounds,local-bounds,integer-divide-by-zero",
    "-fsanitize-trap=all", "-w",
)  # fmt: skip
# For kernels that tell the launcher each load and store (shim/watch.h): to be watched for races (races.h), or to be
# counted by where in the text they are (counts.h). MODES: none of that, too.
WATCHED = ("-DCUDA_ON_CPU_WATCHED", "-fsanitize=thread", "-mllvm", "-tsan-instrument-func-entry-exit=0")
COUNTED = (
    *WATCHED, "-DCUDA_ON_CPU_COUNTED", "-mllvm", "-tsan-instrument-read-before-write=1", "-gline-tables-only",
    "-fno-optimize-sibling-calls", "-fno-builtin-memcpy", "-fno-builtin-memset",
)  # fmt: skip
MODES = {"": (), "watched": WATCHED, "counted": COUNTED}
KERNEL = re.compile(r'extern "C" __global__ void\s+(?:__launch_bounds__\((\d+)[^)]*\)\s*)?(\w+)\(([^)]*)\)\s*([;{])')
WAITS = re.compile(r"\b(__sync\w+|__shfl\w*|__ballot\w*|__any_sync|__all_sync|__activemask|asm|__asm__|ptx_\w+)\b")
FILE = re.compile(r'\s*\.file\s+(\d+)\s.*"(?:[^"]*/)?([^"/]+)"(?:\s+md5 \w+)?$')
LOC = re.compile(r"\s*\.loc\s+(\d+)\s+(\d+)")
CALLS = re.compile(r"\s*(callq?|blr?)\s")
FUNCTION = re.compile(r"\b(\w+)\([^()]*\)\s*\{")


class CompileError(Exception):
    """The text cannot be compiled for the CPU: what clang said, and where the text lies."""


@attrs.frozen
class Kernel:
    """One kernel of a text: its parameters' types, the bound on its threads, whether its threads wait for others."""

    name: str
    types: tuple[str, ...]
    threads: int
    waits: bool
    start: int  # where its body begins in the text


def folder() -> Path:
    """Where compiled texts are kept."""
    found = Path(os.environ.get(CACHE) or Path(tempfile.gettempdir()) / f"sexpgpu-cuda-on-cpu-{os.getuid()}")
    found.mkdir(parents=True, exist_ok=True)
    return found


@functools.cache
def cpu_flags() -> tuple[str, ...]:
    """A processor with fused multiply-adds uses them, or each would be a call of the C library."""
    words = set(Path("/proc/cpuinfo").read_text().split()) if Path("/proc/cpuinfo").exists() else set()
    return ("-march=x86-64-v3",) if platform.machine() == "x86_64" and {"avx2", "fma", "f16c"} <= words else ()


@functools.cache
def _toolchain() -> str:
    """A digest of all but the text that the bytes depend on."""
    flags = (cpu_flags(), COMMON, KERNELS, COUNTED)
    digest = hashlib.sha256(repr((version("ziglang"), platform.machine(), *flags)).encode())
    for path in sorted(
        [
            *HERE.glob("*.h"),
            *HERE.glob("*.cc"),
            *(HERE / "shim").iterdir(),
            *(HERE / "driver").iterdir(),
            Path(__file__),
        ]
    ):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


def zig(*command: str) -> None:
    """A tool of the wheel. Raises CompileError with what it said."""
    tool = str(files("ziglang") / "zig")  # what ``python -m ziglang`` becomes; a kernel compiles in twice that start
    done = subprocess.run([tool, *command], capture_output=True, text=True)
    if done.returncode:
        raise CompileError(f"{' '.join(command[:1])} failed:\n{done.stderr[:4000] or done.returncode}")


def clang(source: Path, output: Path, *flags: str, action: str = "-c") -> None:
    target = f"--target={TRIPLES[platform.machine()]}"
    zig("clang", target, *cpu_flags(), *COMMON, *flags, "-nostdinc", action, str(source), "-o", str(output))


def link(objects: Sequence[Path], output: Path, *flags: str) -> None:
    """A shared object that leaves what it needs of the C library to whoever loads it."""
    zig("ld.lld", "-shared", "--hash-style=gnu", *flags, "-o", str(output), *map(str, objects))


def libc_headers() -> list[str]:
    """The flags that find those of the wheel, in the form for a C library of some years ago."""
    lib = Path(str(files("ziglang"))) / "lib"
    here = "x86" if platform.machine() == "x86_64" else "aarch64"
    libc = [
        f"libc/include/{name}" for name in (f"{here}-linux-gnu", "generic-glibc", f"{here}-linux-any", "any-linux-any")
    ]
    return ["-D__GLIBC_MINOR__=28", *(f"-isystem{lib / name}" for name in ("include", *libc))]


def native(output: Path, sources: Sequence[str], *link_flags: str) -> None:
    """A shared object of C++ files of this folder."""
    objects = [output.with_name(f"{Path(source).stem}.o") for source in sources]
    for source, out in zip(sources, objects, strict=True):
        clang(HERE / source, out, f"-I{HERE}", "-Wall", "-D_GNU_SOURCE", *libc_headers())
    link(objects, output, *link_flags)


def core() -> Path:
    """The library that runs kernels."""
    return cached("core", ".so", lambda path: native(path, CORE))


WHEEL = "site/nvidia/cu13/lib"  # where the wheel of CUDA's runtime has it, below a folder of packages


def driver() -> Path:
    """A folder with libcuda.so.1, and libcudart.so.13 in WHEEL, of a device that runs kernels on the CPU."""

    def make(folder: Path) -> None:
        wheel = folder / WHEEL
        wheel.mkdir(parents=True)
        (folder / "site/nvidia/__init__.py").touch()  # before any other package of the name
        parts = ("memory", "queue", "settings", "libcuda")
        sources = [*CORE, *(f"driver/{part}.cc" for part in parts)]
        native(folder / "libcuda.so.1", sources, "-soname", "libcuda.so.1")
        versions = folder / "versions"
        versions.write_text("libcudart.so.13 { global: cuda*; fake_cuda_counters; local: *; };")
        flags = ("-soname", "libcudart.so.13", "--version-script", str(versions), str(folder / "libcuda.so.1"))
        native(wheel / "libcudart.so.13", ("driver/libcudart.cc",), *flags)

    return cached("driver", "", make)


def cached(key: str, suffix: str, make: Callable[[Path], None]) -> Path:
    """The file or folder of ``key``, made by ``make(path)`` if it is not there, by one of the processes that ask."""
    path = folder() / f"{hashlib.sha256((_toolchain() + key).encode()).hexdigest()[:32]}{suffix}"
    if path.exists():
        return path
    with open(path.with_name(f"{path.name}.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            with tempfile.TemporaryDirectory(dir=folder()) as work:
                made = Path(work) / path.name
                make(made)
                made.rename(path)
    return path


def kernels(source: str) -> list[Kernel]:
    """The kernels that ``source`` defines, in their order."""
    heads = [m for m in KERNEL.finditer(source) if m[4] == "{"]
    first = heads[0].start() if heads else len(source)
    helpers = {m[1] for m in FUNCTION.finditer(source[:first]) if WAITS.search(_block(source, m.end()))}
    waits = re.compile("|".join([WAITS.pattern, *(rf"\b{re.escape(h)}\b" for h in sorted(helpers))]))
    found = []
    for head in heads:
        types = tuple(_type(p) for p in head[3].split(",") if p.strip())
        body = _block(source, head.end())
        found.append(Kernel(head[2], types, int(head[1] or 1024), bool(waits.search(body)), head.end()))
    return found


def _block(source: str, start: int) -> str:
    """The text from ``start``, just behind a brace, to the brace that closes it."""
    depth, at = 1, start
    while depth and at < len(source):
        depth += {"{": 1, "}": -1}.get(source[at], 0)
        at += 1
    return source[start:at]


def _type(parameter: str) -> str:
    """The type of ``const float* __restrict__ x``."""
    words = re.sub(r"\b(__restrict__|const|__grid_constant__)\b", " ", parameter)
    return " ".join(re.sub(r"\w+\s*$", "", words.strip()).split())


def translated(source: str) -> str:
    """``source`` with what a C++ compiler for the CPU needs around it."""
    try:
        source = assembly.replaced(source)
    except ValueError as error:
        raise CompileError(str(error)) from None
    pieces, at, table = ['#include "shim/cuda_on_cpu.h"\n'], 0, []
    for n, kernel in enumerate(kernels(source)):
        start = source.rindex('extern "C" __global__', 0, kernel.start)
        pieces += [source[at:start], f'\n#undef CUDA_ON_CPU_SECTION\n#define CUDA_ON_CPU_SECTION "shared_{n}"\n']
        pieces += [source[start : kernel.start], "\nCUDA_ON_CPU_ENTER\n"]
        at = kernel.start
        table.append(_entry(n, kernel))
    text = "".join([*pieces, source[at:], "\n", *table, _table(kernels(source))])
    text = re.sub(r"__shared__\s+(alignas\(\d+\))", r"\1 __shared__", text)  # C++ has attributes in this order only
    return re.sub(
        r"extern\s+__shared__\s[^;]*?(\w+)\[\];", r"unsigned char* const \1 = cuda_on_cpu_now->dynamic;", text
    )


def _entry(n: int, kernel: Kernel) -> str:
    """A function that takes the parameters as cuLaunchKernel does, and where the kernel's shared memory lies."""
    values = ", ".join(f"*({t}*)p[{i}]" for i, t in enumerate(kernel.types))
    sizes = ", ".join([*(f"sizeof({t})" for t in kernel.types), "0"])
    pointers = ", ".join([*(str(int(t.endswith("*"))) for t in kernel.types), "0"])
    ends = "".join(f'extern "C" unsigned char __{e}_shared_{n}[] __attribute__((weak));\n' for e in ("start", "stop"))
    return (
        f"CUDA_ON_CPU_UNWATCHED static void call_{n}(void** p) {{ {kernel.name}({values}); }}\n"
        f"static const unsigned sizes_{n}[] = {{{sizes}}};\n"
        f"static const unsigned char pointers_{n}[] = {{{pointers}}};\n{ends}"
    )


def _table(found: Sequence[Kernel]) -> str:
    rows = []
    for n, k in enumerate(found):
        shared = f"__start_shared_{n}, __stop_shared_{n}"
        waits = "true" if k.waits else "false"
        rows.append(
            f'{{"{k.name}", call_{n}, {len(k.types)}, sizes_{n}, pointers_{n}, {shared}, {k.threads}, {waits}, '
            "CUDA_ON_CPU_SITES},\n"
        )
    return (
        f'extern "C" const cuda_on_cpu::Kernel cuda_on_cpu_kernels[] = {{\n{"".join(rows)}{{}}}};\n'
        'extern "C" CUDA_ON_CPU_UNWATCHED void cuda_on_cpu_attach(cuda_on_cpu::State* state)'
        " { cuda_on_cpu_now = state; }\n"
    )


def cached_library(source: str, mode: str = "") -> Path:
    """Where the shared object of CUDA text ``source`` lies: its kernels and a table of them. ``mode``: one of MODES, of
    which a launch of "watched" kernels fails at a race and that of "counted" ones counts. Raises CompileError."""
    flags = (f"-I{HERE}", f"-I{HERE / 'shim'}", *KERNELS, *MODES[mode])

    def make(path: Path) -> None:
        text, built = path.with_suffix(".cc"), path.with_suffix(".o")
        text.write_text(translated(source))
        try:
            if mode == "counted":
                clang(text, path.with_suffix(".s"), *flags, action="-S")
                path.with_suffix(".s").write_text(placed(path.with_suffix(".s").read_text(), text.name))
                clang(path.with_suffix(".s"), built)
            else:
                clang(text, built, *flags)
        except CompileError as error:
            kept = folder() / "failed.cc"
            kept.write_bytes(path.with_suffix(".cc").read_bytes())
            raise CompileError(f"{error}\nthe text is kept in {kept}") from None
        link([built], path)

    return cached(f"{mode}:{source}", ".so", make)


def placed(assembly: str, text: str) -> str:
    """``assembly`` that was made of the file ``text``, with a table of its calls: where each returns to, and the line
    it is of (core.h's Site)."""
    lines, table, own, line = [], [], set(), 0
    for each in assembly.splitlines():
        lines.append(each)
        if file := FILE.match(each):
            own |= {file[1]} if file[2] == text else set()
        elif loc := LOC.match(each):
            line = int(loc[2]) if loc[1] in own and loc[2] != "0" else line
        elif CALLS.match(each):
            lines.append(f".Lcuda_on_cpu_{len(table)}:")
            table.append(f"\t.quad\t.Lcuda_on_cpu_{len(table)}, {line}")
    name = "cuda_on_cpu_sites"
    head = ["\t.data", "\t.p2align 3", f"\t.globl {name}", f"\t.hidden {name}", f"{name}:"]
    return "\n".join([*lines, *head, *table, "\t.quad\t0, 0", ""])


def library(source: str, mode: str = "") -> bytes:
    """The bytes of ``cached_library``."""
    return cached_library(source, mode).read_bytes()
