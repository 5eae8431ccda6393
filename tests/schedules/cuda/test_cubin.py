"""CUDA text to cubins and PTX: the same bytes anywhere, kept and found again, and nothing of the text in them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest

pytest.importorskip("tvm", reason="needs the extra `build`")

from schedules import targets
from schedules.cuda import cubin, nvrtc

pytestmark = [
    pytest.mark.build,
    pytest.mark.skipif(nvrtc.missing_package() is not None, reason="needs the extra `cuda`"),
]
ROOT = Path(__file__).parents[3]
TEXT = 'extern "C" __global__ void scale(float* x) { x[threadIdx.x] = x[threadIdx.x] * 3.0f + 1.0f; }\n'


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "sexpgpu" / "kernels"


def entries(cache: Path) -> list[Path]:
    return [path for path in cache.rglob("*") if path.is_file()]


def test_a_cubin_and_ptx_hold_the_kernel_and_nothing_of_the_text_or_the_machine(tmp_path: Path) -> None:
    made = {arch: cubin.kernels(TEXT, arch, ("scale",)) for arch in ("sm_75", "sm_90", "sm_100", "compute_80")}
    assert all(made[arch].startswith(b"\x7fELF") for arch in made if arch.startswith("sm_"))
    assert made["compute_80"].startswith(b"/") and b".target sm_80" in made["compute_80"]
    for data in made.values():
        for word in (b"threadIdx", b"kernels.cu", b"debug_line", str(tmp_path).encode(), sys.prefix.encode(), b"/home"):
            assert word not in data
    assert len(set(made.values())) == len(made)


def test_a_product_that_is_added_is_fused_only_where_the_text_says_so() -> None:
    plain = cubin.kernels(TEXT, "compute_80", ("scale",))
    fused = cubin.kernels(TEXT.replace("x[threadIdx.x] * 3.0f + 1.0f", "fmaf(x[0], 3.0f, 1.0f)"), "compute_80", ())
    assert b"mul.rn.f32" in plain and b"fma.rn.f32" not in plain and b"fma.rn.f32" in fused


PRINT = "import hashlib, sys; from schedules.cuda import cubin as c; "
PRINT += (
    "print([hashlib.sha256(c.kernels(open(sys.argv[1]).read(), a, ())).hexdigest() for a in ('sm_90', 'compute_80')])"
)


def test_bytes_depend_on_the_text_alone(tmp_path: Path) -> None:
    (tmp_path / "text").write_text(TEXT)
    said = set()
    for n, seed in enumerate(("1", "99")):
        folder = tmp_path / ("a folder with a longer name" * n or "a")
        folder.mkdir()
        env = {"HOME": str(folder), "TMPDIR": str(folder), "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-c", PRINT, str(tmp_path / "text")]
        done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert len(entries(folder / ".cache" / "sexpgpu" / "kernels")) == 2
        said.add(done.stdout)
    assert len(said) == 1


def test_what_was_compiled_is_found_again_if_it_is_whole(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[str] = []
    real = nvrtc.compile
    monkeypatch.setattr(nvrtc, "compile", lambda *args: runs.append(args[0]) or real(*args))
    made = cubin.kernels(TEXT, "sm_90", ("scale",))
    assert cubin.kernels(TEXT, "sm_90", ("scale",)) == made and len(runs) == 1
    (entry,) = entries(cache)
    entry.write_bytes(entry.read_bytes()[:-1])
    assert cubin.kernels(TEXT, "sm_90", ("scale",)) == made and len(runs) == 2
    assert cubin.kernels(TEXT, "sm_90", ("scale",)) == made and len(runs) == 2
    cubin.kernels(TEXT, "sm_80", ("scale",))
    cubin.kernels(TEXT + "// longer", "sm_80", ("scale",))
    monkeypatch.setattr(nvrtc, "PACKAGES", {**nvrtc.PACKAGES, "nvidia-cuda-crt": "14"})
    cubin.kernels(TEXT, "sm_80", ("scale",))
    assert len(runs) == 5


def test_a_cache_that_cannot_be_written_or_found_is_no_fault(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = cubin.kernels(TEXT, "sm_90", ("scale",))
    blocked = tmp_path / "blocked"
    blocked.write_text("a file where a folder should be")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    assert cubin.kernels(TEXT, "sm_90", ("scale",)) == made
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # to be ignored, says the specification
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cubin.kernels(TEXT, "sm_90", ("scale",)) == made
    assert len(entries(tmp_path / "home" / ".cache" / "sexpgpu" / "kernels")) == 1 and not Path("relative").exists()
    monkeypatch.delenv("HOME")
    assert cubin.folder() is None and cubin.kernels(TEXT, "sm_90", ("scale",)) == made


def test_a_full_disk_leaves_no_half_entry(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cubin.os, "replace", full)
    cubin.kernels(TEXT, "sm_90", ("scale",))
    assert entries(cache) == []


def kept(cache: Path, *used: float) -> list[Path]:
    """Entries of 1000 bytes, last used at these times."""
    made = [cache / f"{n:02x}" / f"{n:064x}" for n in range(len(used))]
    for path, at in zip(made, used, strict=True):
        path.parent.mkdir(parents=True)
        path.write_bytes(bytes(1000))
        os.utime(path, (at, at))
    return made


def test_what_was_used_longest_ago_is_deleted_until_the_rest_has_room(cache: Path) -> None:
    made = kept(cache, 30, 10, 40, 20)
    cubin.prune(4000)
    assert all(path.exists() for path in made)
    cubin.prune(2999)
    assert [path.exists() for path in made] == [True, False, True, False]
    cubin.prune(0)
    assert entries(cache) == []
    cubin.prune(0)


def test_what_is_found_was_used_now(cache: Path) -> None:
    made = cubin.kernels(TEXT, "sm_90", ("scale",))
    (entry,) = entries(cache)
    os.utime(entry, (5, 5))
    assert cubin.kernels(TEXT, "sm_90", ("scale",)) == made
    (old,) = kept(cache / "older", 100)
    old.parent.rename(cache / "zz")
    cubin.prune(entry.stat().st_size)
    assert entries(cache) == [entry]


def test_files_that_killed_builds_left_go_and_those_of_running_ones_stay(cache: Path) -> None:
    (entry,) = kept(cache, time.time())
    for name, age in (("tmpold", 2 * cubin.DAY), ("tmpnew", 60)):
        (entry.parent / name).write_bytes(b"half")
        os.utime(entry.parent / name, (time.time() - age, time.time() - age))
    cubin.prune()
    assert sorted(path.name for path in entries(cache)) == [entry.name, "tmpnew"]


def test_builds_that_prune_at_once_do_not_mind(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = kept(cache, 10, 20)
    real = Path.unlink

    def late(path: Path) -> None:
        """Another build was faster."""
        real(path)
        real(path)

    monkeypatch.setattr(Path, "unlink", late)
    cubin.prune(1000)
    assert entries(cache) == [second] and not first.exists()
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.delenv("HOME")
    cubin.prune(0)
    assert entries(cache) == [second]


@pytest.mark.parametrize("arch", ["sm_90", "compute_80"])
def test_a_kernel_that_is_not_there_is_a_fault(arch: str) -> None:
    with pytest.raises(cubin.KernelMissing, match="scal is not"):
        cubin.kernels(TEXT, arch, ("scale", "scal"))


def test_text_that_does_not_compile_is_a_fault_with_the_compilers_words() -> None:
    with pytest.raises(nvrtc.CompileFault, match="kernels.cu.*expected"):
        cubin.kernels("not CUDA", "sm_90", ())


TVMS = """
#ifdef __CUDACC_RTC__
  #include <cuda/std/cstdint>
  #include <cuda/std/type_traits>
  namespace std {
    using cuda::std::is_same;
    using cuda::std::is_same_v;
  }
#endif
"""


def test_the_traits_of_types_are_read_only_where_they_are_used() -> None:
    assert "type_traits" not in cubin._text(TVMS + TEXT)
    used = 'extern "C" __global__ void k(int* x) { x[0] = std::is_same_v<int, long>; }'
    assert "type_traits" in cubin._text(TVMS + used)
    assert cubin.kernels(TVMS + used, "sm_90", ("k",))


def test_bf16_compiles_for_cards_older_than_it() -> None:
    header = "#if !defined(__CUDA_ARCH__) || (__CUDA_ARCH__ >= 800)\n#include <cuda_bf16.h>\n#endif\n"
    text = header + 'extern "C" __global__ void k(nv_bfloat16* x) { x[0] = x[1] + x[2]; }'
    assert cubin.kernels(text, "sm_75", ("k",))


def test_the_extra_and_the_targets_are_what_this_compiler_is() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    own, *wheels = extras["cuda"]  # with it alone a build is all there
    assert own == "sexpgpu[build]" and dict(re.split("==", line) for line in wheels) == dict(nvrtc.PACKAGES)
    assert nvrtc.supported() == targets.CAPABILITIES


def test_another_release_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc, "version", lambda package: "13.4.0" if package == "nvidia-cuda-crt" else "13.5.37")
    assert nvrtc.missing_package() == "nvidia-cuda-crt 13.5.37, and 13.4.0 is installed"


def test_so_is_a_package_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc, "PACKAGES", {**nvrtc.PACKAGES, "no-such-package": "1"})
    assert nvrtc.missing_package() == "no-such-package 1"


def test_a_text_has_one_result_wherever_the_compiler_has_its_memory() -> None:
    """A kernel of attention's gradients, of which it made several while vectors were copied as structs."""
    text, found = cubin._text((Path(__file__).parent / "attend_grad.cu").read_text()), set()
    for turn in range(8):
        held = bytearray((turn + 1) << 12)  # what is allocated next lies elsewhere
        found.add(nvrtc.compile(text, cubin.NAME, ("--gpu-architecture=compute_80", *cubin.OPTIONS), False))
        del held
    assert len(found) == 1


COPIES = {"float2": 64, "int2": 64, "uint2": 64, "float4": 128, "int4": 128, "uint4": 128, "double2": 128}


@pytest.mark.parametrize("kind", COPIES)
def test_a_vector_is_copied_as_one_number_which_may_be_where_its_elements_are(kind: str) -> None:
    """Were numbers of two types taken for different places, 2 would be known to be in ``a[1]``."""
    text = cubin._text(
        f'extern "C" __global__ void copy(float* a, {kind}* from, {kind}* to, float* out) {{\n'
        f"  a[1] = 2.0f;\n  *({kind}*)(to) = *({kind}*)(from);\n  out[0] = a[1];\n}}\n"
    )
    assert text.count("*(__int128*)" if COPIES[kind] == 128 else "*(long long*)") == 2
    ptx = cubin.kernels(text, "compute_80", ("copy",)).decode()
    moves = re.findall(r"(ld|st)\.global\.((?:v\d\.)?[bfsu]\d+)", ptx)
    wide = moves[1][1]
    assert [way for way, _ in moves] == ["st", "ld", "st", "ld", "st"] and moves[2][1] == wide
    assert int(wide[-2:]) * int(wide[1] if wide[0] == "v" else 1) == COPIES[kind]
