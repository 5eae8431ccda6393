"""What is asked of the machine before a run on a GPU: rows 48, 52 and 70, against a driver that answers as it is told
(fake_driver.c)."""

from __future__ import annotations

import ctypes
import os
import re
import struct
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import attrs
import pytest

from artifacts import describe, run
from artifacts.base import elf, errors
from artifacts.base.errors import RunError
from artifacts.device import cuda, cuda_driver, cuda_errors, cuda_graphs, cuda_runtime, interface, library, memory_check
from artifacts.format import manifest as m
from artifacts.format import tar_writer, tarball
from tests.artifacts import toy
from tests.artifacts.support import one_error

pytestmark = pytest.mark.build  # the fake driver is compiled by the compiler's own linker

MACHINE = os.uname().machine
H100 = m.Target("nvidia-h100", toy.LIBRARY, MACHINE, (), "cuda", ("sm_80", "sm_90", "compute_80"), True)
CPU = toy.manifest().targets[0]
GPU_RUNTIME = "runtime/libtvm_runtime_cuda.so"
Captured = pytest.CaptureFixture[str]


@pytest.fixture(scope="session")
def fake(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("driver")
    source, made = Path(__file__).with_name("fake_driver.c"), folder / "libcuda.so.1"
    options = ("-target", f"{MACHINE}-linux-gnu", "-shared", "-fPIC", "-nostdlib", "-O1", "-fno-sanitize=all")
    command = [sys.executable, "-m", "ziglang", "cc", *options, "-o", str(made), str(source)]
    caches = {f"ZIG_{kind}_CACHE_DIR": str(folder) for kind in ("GLOBAL", "LOCAL")}
    done = subprocess.run(command, env={**os.environ, **caches}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return str(made)


@pytest.fixture(autouse=True)
def driven(request: pytest.FixtureRequest, fake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fake in the place of the machine's driver; no code of an artifact may be loaded."""
    for name in [name for name in os.environ if name.startswith(("FAKE_CUDA_", "CUDA_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(cuda_driver, "LIBRARY", fake)
    monkeypatch.setattr(library, "load_shared", lambda *_: pytest.fail("native code was loaded"))
    monkeypatch.setattr(cuda_runtime, "load", lambda *_: pytest.fail("CUDA's runtime was loaded"))


def manifest(*targets: m.Target, **changes: object) -> m.Manifest:
    made = attrs.evolve(toy.manifest(), targets=targets, runtime=m.Runtime(toy.RUNTIME, toy.RUNTIME))
    return attrs.evolve(made, **changes)


def run_fake(folder: Path, made: m.Manifest, *more: str) -> int:
    artifact = toy.write(folder, made)
    return run.main([artifact, "--out", str(folder / "out"), "--data", str(folder), *more])


REFUSED = {
    "no GPU": ({"FAKE_CUDA_INIT": "100"}, "E-DEVICE-011", "the NVIDIA driver sees no GPU"),
    "none visible": (
        {"FAKE_CUDA_INIT": "100", "CUDA_VISIBLE_DEVICES": ""},
        "E-DEVICE-011",
        '(CUDA_VISIBLE_DEVICES is "")',
    ),
    "one that is not there": (
        {"FAKE_CUDA_DEVICES": "0", "CUDA_VISIBLE_DEVICES": "99"},
        "E-DEVICE-011",
        '(CUDA_VISIBLE_DEVICES is "99")',
    ),
    "a broken driver": ({"FAKE_CUDA_INIT": "803"}, "E-DEVICE-010", "does not start: CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"),
    "not ready": ({"FAKE_CUDA_INIT": "802"}, "E-DEVICE-014", "not ready: CUDA_ERROR_SYSTEM_NOT_READY"),
    "an old driver": (
        {"FAKE_CUDA_DRIVER": "12040"},
        "E-DEVICE-012",
        "the NVIDIA driver is for CUDA 12.4, the kernels need 13.0 (install the driver 580 or newer)",
    ),
    "an old GPU": (
        {"FAKE_CUDA_CC": "75"},
        "E-TARGET-012",
        "built for sm_80 sm_90 compute_80, and this GPU, Fake GPU, is sm_75 "
        "(build it again with cuda-sm_75 added to --target)",
    ),
    "memory": (
        {"FAKE_CUDA_FREE": str(100 * 2**20)},
        "E-DEVICE-013",
        "the run takes 256.0 MiB of Fake GPU's memory, 100.0 MiB are free; its largest phase is init with 1.0 KiB",
    ),
    "no memory at all": ({"FAKE_CUDA_CONTEXT": "2"}, "E-DEVICE-013", "not even for a context"),
    "exclusive": ({"FAKE_CUDA_CONTEXT": "46"}, "E-DEVICE-014", "GPU 0 cannot be used: CUDA_ERROR_DEVICE_UNAVAILABLE"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_row_70_refused_in_words_before_anything_is_loaded(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    environment, code, words = REFUSED[case]
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert run_fake(tmp_path, manifest(H100)) == 3
    assert words in one_error(capsys.readouterr().err, code)
    assert not (tmp_path / "out").exists()


def test_a_gpu_is_asked_for_the_plan_and_for_what_no_plan_counts() -> None:
    """Whatever ``init`` returns: a run of 20.8 GiB fits on a card of 24."""
    plan, wide = int(20.8 * 2**30), toy.port("param", "net/w", (2**29,))
    phases = tuple(attrs.evolve(p, outputs=(wide, *p.outputs[1:])) if p.name == "init" else p for p in toy.PHASES)
    made = manifest(H100, memory=m.Memory(0, 0, 0, 0, 0, plan, 0), phases=phases)
    assert cuda.wanted(made, H100) == plan + cuda.OVERHEAD < 24 * 2**30


def test_row_70_a_driver_that_cannot_compile_the_ptx(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.setenv("FAKE_CUDA_CC", "100")
    toy.write_data(tmp_path)
    text = b"//\n// Generated by NVVM\n//\n\n.version 9.5\n.target sm_80\n"
    members = {**toy.MEMBERS, f"kernels/{'0' * 64}.compute_80.ptx": text, f"kernels/{'0' * 64}.sm_90.cubin": b""}
    tar_writer.write(str(tmp_path / "ptx.tar"), manifest(H100), members)
    where = [str(tmp_path / "ptx.tar"), "--out", str(tmp_path / "out"), "--data", str(tmp_path), "-q"]
    assert run.main(where) == 3
    words = "the NVIDIA driver is for CUDA 13.0, the PTX for this GPU needs 13.5 (install a driver for it, or build"
    assert words in one_error(capsys.readouterr().err, "E-DEVICE-012")
    cuda_driver.check_ptx(text, 13050, "")
    cuda_driver.check_ptx(b"no version", 13000, "")


@pytest.mark.parametrize("size", [0, 4, 63, 64, 119, 200])
def test_kernels_that_are_cut_short(tmp_path: Path, size: int, capsys: Captured) -> None:
    """A driver that is given the place of a cubin reads as far as the cubin's headers say."""
    header = struct.pack("<HHIQQQIHHHHHH", 2, 190, 1, 0, 64, 0, 0, 64, 56, 1, 64, 0, 0)
    segment = struct.pack("<IIQQQQQQ", 1, 5, 120, 0, 0, 100, 100, 8)
    cubin = b"\x7fELF\x02\x01\x01" + bytes(9) + header + segment + bytes(100)
    elf.check_whole(cubin)
    toy.write_data(tmp_path)
    member = f"kernels/{'0' * 64}.sm_90.cubin"
    tar_writer.write(str(tmp_path / "a.tar"), manifest(H100), {**toy.MEMBERS, member: cubin[:size]})
    assert run.main([str(tmp_path / "a.tar"), "--out", str(tmp_path / "out"), "--data", str(tmp_path), "-q"]) in (3, 4)
    said = capsys.readouterr().err
    assert member in one_error(said, "E-ART-002" if size >= 6 else "E-ENV-011")


def test_kernels_are_served_by_their_key_and_nothing_else_is(tmp_path: Path) -> None:
    key = "0123456789abcdef" * 4
    kernels = {f"kernels/{key}.sm_90.cubin": b"\x7fELF", f"kernels/{key}.compute_80.ptx": b"// text"}
    tar_writer.write(str(tmp_path / "a.tar"), manifest(H100), {**toy.MEMBERS, **kernels})
    with tarball.open(str(tmp_path / "a.tar")) as artifact:
        assert cuda._kernel_server(artifact, "sm_90")(f"sexpgpu-kernels:{key}\n") == b"\x7fELF"
        assert cuda._kernel_server(artifact, "compute_80")(f"sexpgpu-kernels:{key}") == b"// text\0"
        for source, code in (
            ('extern "C" __global__ void k() {}', errors.ENV_LIBRARY),
            (f"sexpgpu-kernels:../{key}", errors.ENV_LIBRARY),
            (f"sexpgpu-kernels:{'0' * 64}", errors.ART_MEMBERS),
        ):
            with pytest.raises(RunError) as caught:
                cuda._kernel_server(artifact, "sm_90")(source)
            assert caught.value.code is code


def test_row_70_no_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    monkeypatch.setattr(cuda_driver, "LIBRARY", "libcuda-that-is-not-there.so.1")
    assert run_fake(tmp_path, manifest(H100)) == 3
    line = one_error(capsys.readouterr().err, "E-DEVICE-010")
    assert "there is no NVIDIA driver: libcuda-that-is-not-there.so.1" in line and "driver 580 or newer" in line
    assert "the wheel nvidia-cuda-runtime: pip install 'sexpgpu[gpu]'" in line  # all else of CUDA that a run needs


def test_row_48_the_host_of_a_gpu(tmp_path: Path, capsys: Captured) -> None:
    assert run_fake(tmp_path, manifest(attrs.evolve(H100, machine="riscv64"))) == 3
    assert "built for riscv64, this machine is" in one_error(capsys.readouterr().err, "E-TARGET-010")
    with pytest.raises(RunError) as caught:
        memory_check.check_host(manifest(H100), "x.tar", available=10 * 2**20, data=3 * 2**20)
    assert caught.value.code is errors.MEM_MACHINE and "3.0 MiB of them for data, 10.0 MiB are free" in str(
        caught.value
    )
    memory_check.check_host(manifest(H100), "x.tar", available=400 * 2**20)


def test_what_a_gpu_runs() -> None:
    """Binary compatibility goes up within a major number; PTX goes up without end."""
    archs = ("sm_80", "sm_86", "sm_90", "compute_80")
    for capability, arch in (
        (80, "sm_80"),
        (86, "sm_86"),
        (87, "sm_86"),
        (89, "sm_86"),
        (90, "sm_90"),
        (100, "compute_80"),
        (120, "compute_80"),
        (75, None),
    ):
        assert cuda_driver.best_arch(archs, capability) == arch
    assert cuda_driver.best_arch(("sm_86",), 80) is None and cuda_driver.best_arch(("sm_80",), 90) is None
    assert cuda_driver.best_arch(("sm_103", "sm_100"), 101) == "sm_100"


def test_the_target_with_a_cubin_comes_first_and_ptx_after_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    old = attrs.evolve(H100, name="old", archs=("sm_75", "compute_75"))
    new = attrs.evolve(H100, name="new", archs=("sm_80", "compute_80"))
    made = manifest(old, new)
    for capability, name, arch in ((75, "old", "sm_75"), (89, "new", "sm_80"), (100, "old", "compute_75")):
        monkeypatch.setenv("FAKE_CUDA_CC", str(capability))
        choice = interface.choose(made, "x.tar")
        assert (choice.target.name, choice.has.arch) == (name, arch)
        assert choice.description == f"cuda:0, Fake GPU, kernels for {arch}"


def test_the_gpu_first_then_the_cpu_which_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    made = manifest(CPU, H100)
    assert interface.choose(made, "x.tar").target is H100
    assert interface.choose(made, "x.tar", device="cpu").target is CPU
    assert interface.choose(made, "x.tar", target=CPU.name).description == ""
    monkeypatch.setenv("FAKE_CUDA_INIT", "100")
    choice = interface.choose(made, "x.tar")
    assert choice.target is CPU and choice.row is interface.ROWS["cpu"]
    assert choice.description == "cpu-any, on the CPU, since the NVIDIA driver sees no GPU (E-DEVICE-011)"
    for wish in ({"device": "cuda"}, {"target": "nvidia-h100"}):
        with pytest.raises(RunError, match="sees no GPU"):
            interface.choose(made, "x.tar", **wish)


@pytest.mark.parametrize("name, value", [("FAKE_CUDA_DRIVER", "12080"), ("FAKE_CUDA_INIT", "802")])
def test_a_gpu_that_could_be_used_is_not_passed_over(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(RunError):
        interface.choose(manifest(CPU, H100), "x.tar")


def test_the_device_by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_CUDA_DEVICES", "2")
    choice = interface.choose(manifest(H100), "x.tar", device="cuda:1")
    assert choice.number == choice.has.gpu.number == 1 and choice.description.startswith("cuda:1, ")
    with pytest.raises(RunError, match=re.escape("there is no GPU 2: 2 visible, counted from 0")) as caught:
        interface.choose(manifest(CPU, H100), "x.tar", device="cuda:2")
    assert caught.value.code is errors.DEVICE_NONE


def test_a_library_goes_by_the_names_of_what_it_was_built_for() -> None:
    """Its own is that of its schedules: a user asked for cards, or for a compute capability."""
    made = manifest(attrs.evolve(H100, name="cuda-sm_80"), CPU)
    for name in ("cuda-sm_80", "nvidia-h100", "nvidia-h200", "nvidia-a100", "cuda-sm_90"):
        assert interface.choose(made, "x.tar", target=name).target.name == "cuda-sm_80"
    for name in ("nvidia-b200", "nvidia-l4", "cuda-sm_86", "cuda-compute_80"):
        with pytest.raises(RunError) as caught:
            interface.choose(made, "x.tar", target=name)
        assert caught.value.code is errors.TARGET_NAME
    built = "nvidia-h200 nvidia-h100 nvidia-a100 cuda-sm_90"
    assert caught.value.hint == f"it has cuda-sm_80 ({built}) cpu-any"


def test_a_device_that_the_artifact_has_no_library_for() -> None:
    for made, wish, words in (
        (manifest(CPU), "cuda:0", "there is no library for cuda (it has cpu-any (cpu))"),
        (manifest(H100), "cpu", "there is no library for cpu (it has nvidia-h100 (cuda))"),
    ):
        with pytest.raises(RunError, match=re.escape(words)) as caught:
            interface.choose(made, "x.tar", device=wish)
        assert caught.value.code is errors.TARGET_DEVICE and caught.value.code.exit == 3


@pytest.mark.parametrize("value", ["gpu", "cuda:", "cuda:-1", "cuda:a", "CPU", "cpu:0"])
def test_the_option_is_read_strictly(value: str, tmp_path: Path, capsys: Captured) -> None:
    assert run_fake(tmp_path, manifest(CPU), f"--device={value}") == 2
    assert "it should be cpu, cuda, or cuda: and a number" in one_error(capsys.readouterr().err, "E-CLI-002")


def test_row_52_no_runtime_of_cuda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    monkeypatch.undo()  # what is refused here is loaded after the checks
    monkeypatch.setattr(cuda_runtime, "NAME", "libcudart-that-is-not-there.so.13")
    with pytest.raises(RunError) as caught:
        cuda_runtime.load("x.tar")
    assert caught.value.code is errors.ENV_LIBRARY and "(pip install 'sexpgpu[gpu]')" in str(caught.value)


@pytest.mark.parametrize(
    "text, code",
    [
        ("CUDA Runtime Error: cudaErrorMemoryAllocation (2): out of memory", errors.DEVICE_FULL),
        ("CUDALaunch Error: CUDA_ERROR_ILLEGAL_ADDRESS", errors.DEVICE_LOST),
        (
            "CUDA Runtime Error: cudaErrorECCUncorrectable (214): uncorrectable ECC error encountered",
            errors.DEVICE_LOST,
        ),
        ("cuModuleLoadData(...) failed with error: CUDA_ERROR_UNSUPPORTED_PTX_VERSION", errors.DEVICE_OLD),
        ("CUDALaunch Error: CUDA_ERROR_INVALID_VALUE", errors.DEVICE_CALL),
        ("CUDA Runtime Error: cudaErrorSymbolNotFound (500): named symbol not found", errors.DEVICE_CALL),
        ("CUDA Runtime Error: cudaErrorCapturedEvent (907): not permitted", errors.DEVICE_CALL),
        ("cudaSetDevice: cudaErrorDevicesUnavailable: busy or unavailable", errors.DEVICE_BUSY),
        ("CUDALaunch Error: CUDA_ERROR_MPS_CLIENT_TERMINATED", errors.DEVICE_LOST),
        ("CUDA Runtime Error: cudaErrorThatIsNewerThanThis (9999): what", errors.DEVICE_LOST),
        ("cuModuleLoadData(...) failed with error: CUDA_ERROR_JIT_COMPILER_NOT_FOUND", errors.DEVICE_DRIVER),
        ("CUDA Runtime Error: cudaErrorStreamCaptureUnsupported (900): not permitted", errors.DEVICE_CALL),
        ("Argument 0 has another shape", errors.DEVICE_CALL),
    ],
)
def test_row_71_what_a_failure_in_the_run_means(text: str, code: errors.Code) -> None:
    error = cuda_runtime.fault("phase train failed", text)
    assert error.code is code and error.code.exit == 3 and text in str(error)


BUSY = [status for status in cuda_errors.STATUSES if status.code is errors.DEVICE_BUSY]


@pytest.mark.parametrize("where, words", [("INIT", "are not ready: "), ("CONTEXT", "cannot be used: ")])
@pytest.mark.parametrize("status", BUSY, ids=lambda status: str(status.number))
def test_row_70_a_gpu_that_others_have_or_that_is_not_up(
    status: cuda_errors.Status,
    where: str,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Captured,
) -> None:
    monkeypatch.setenv(f"FAKE_CUDA_{where}", str(status.number))
    assert run_fake(tmp_path, manifest(H100)) == 3
    line = one_error(capsys.readouterr().err, "E-DEVICE-014")
    assert words + status.driver in line and status.hint in line


def test_the_services_that_share_a_gpu_are_not_its_absence() -> None:
    assert {46, 802, 805, 806, 807, 808, 809} < {status.number for status in BUSY}


@pytest.mark.parametrize("number, words", [(34, "look at LD_LIBRARY_PATH"), (999, "error 999")])
def test_row_70_a_driver_that_does_not_start(
    number: int, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.setenv("FAKE_CUDA_INIT", str(number))
    assert run_fake(tmp_path, manifest(H100)) == 3
    assert words in one_error(capsys.readouterr().err, "E-DEVICE-010")


HEADERS = {  # of NVIDIA's wheel: where the numbers of an enumeration stand, and what the runner takes from there
    "cuda.h": (
        r"\b(CU(?:DA)?_[A-Z0-9_]+) *= *(\d+)",
        {"CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR": cuda_driver.MAJOR,
         "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR": cuda_driver.MINOR,
         **{status.driver: status.number for status in cuda_errors.STATUSES if status.driver}},
    ),
    "driver_types.h": (
        r"\b(cuda[A-Z]\w+) *= *(\d+)",
        {"cudaMemcpyHostToDevice": cuda_runtime.TO_DEVICE, "cudaMemcpyDeviceToHost": cuda_runtime.TO_HOST,
         "cudaMemcpyDeviceToDevice": cuda_runtime.ON_DEVICE, "cudaStreamCaptureModeRelaxed": cuda_runtime.RELAXED,
         "cudaErrorMemoryAllocation": cuda_graphs.MEMORY_ALLOCATION,
         **{status.runtime: status.number for status in cuda_errors.STATUSES if status.runtime}},
    ),
}  # fmt: skip


def header(name: str) -> str:
    nvidia = find_spec("nvidia")
    folders = (nvidia.submodule_search_locations or ()) if nvidia else ()
    found = [Path(folder) / "cu13/include" / name for folder in folders]
    if not any(path.is_file() for path in found):
        pytest.skip("the wheel of CUDA's headers, of the extra cuda, is not installed")
    return next(path for path in found if path.is_file()).read_text()


@pytest.mark.parametrize("name", HEADERS)
def test_numbers_and_names_are_those_of_cudas_headers(name: str) -> None:
    pattern, wanted = HEADERS[name]
    numbers = dict(re.findall(pattern, header(name)))
    assert {word: int(numbers[word]) for word in wanted} == wanted


def test_flags_are_those_of_cudas_headers() -> None:
    flags = {word: int(n, 16) for word, n in re.findall(r"#define (cuda\w+)\s+(0x\w+)", header("driver_types.h"))}
    assert flags["cudaStreamNonBlocking"] == cuda_runtime.NON_BLOCKING
    assert flags["cudaEventBlockingSync"] | flags["cudaEventDisableTiming"] == cuda_runtime.EVENT_FLAGS


def test_each_error_of_cuda_has_one_meaning() -> None:
    names = [name for status in cuda_errors.STATUSES for name in (status.driver, status.runtime) if name]
    assert len(cuda_errors.NUMBERED) == len(cuda_errors.STATUSES) and len(set(names)) == len(names)


def test_inspect_says_what_a_gpu_must_be(tmp_path: Path) -> None:
    with tarball.open(toy.write(tmp_path, manifest(H100, CPU))) as artifact:
        lines = describe.describe(artifact).splitlines()
    words = "a GPU of CUDA with kernels for sm_80 sm_90 compute_80, captured as graphs"
    assert f"  nvidia-h100: {MACHINE}, {words}" in lines and f"  cpu-any: {MACHINE}, no special instructions" in lines


def test_the_fake_is_a_driver(fake: str) -> None:
    assert cuda_driver.survey(0) == cuda_driver.Gpu(0, "Fake GPU", 90, 13000)
    assert ctypes.CDLL(fake).cuInit(0) == 0 and cuda_driver.Driver().free(0) == 2**34
