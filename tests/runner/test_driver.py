"""What is asked of the machine before a run on a GPU: rows 48, 52 and 70, against a driver that answers as it is told
(fake_driver.c)."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
from pathlib import Path

import attrs
import pytest

from artifacts import cudart, device, driver, errors, library, memory, run
from artifacts import manifest as m
from artifacts.errors import RunError

from . import toy
from .support import one_error

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
    monkeypatch.setattr(driver, "LIBRARY", fake)
    monkeypatch.setattr(library, "load_shared", lambda *_: pytest.fail("native code was loaded"))
    monkeypatch.setattr(cudart, "load", lambda *_: pytest.fail("CUDA's runtime was loaded"))


def manifest(*targets: m.Target, **changes: object) -> m.Manifest:
    made = attrs.evolve(toy.manifest(), targets=targets, runtime=m.Runtime(toy.RUNTIME, toy.RUNTIME))
    return attrs.evolve(made, **changes)


def go(folder: Path, made: m.Manifest, *more: str) -> int:
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
        "the run takes 128.0 MiB of Fake GPU's memory, 100.0 MiB are free; its largest phase is init with 1.0 KiB",
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
    assert go(tmp_path, manifest(H100)) == 3
    assert words in one_error(capsys.readouterr().err, code)
    assert not (tmp_path / "out").exists()


def test_row_70_no_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    monkeypatch.setattr(driver, "LIBRARY", "libcuda-that-is-not-there.so.1")
    assert go(tmp_path, manifest(H100)) == 3
    line = one_error(capsys.readouterr().err, "E-DEVICE-010")
    assert "there is no NVIDIA driver: libcuda-that-is-not-there.so.1" in line and "driver 580 or newer" in line


def test_row_48_the_host_of_a_gpu(tmp_path: Path, capsys: Captured) -> None:
    assert go(tmp_path, manifest(attrs.evolve(H100, machine="riscv64"))) == 3
    assert "built for riscv64, this machine is" in one_error(capsys.readouterr().err, "E-TARGET-010")
    with pytest.raises(RunError) as caught:
        memory.check_host(manifest(H100), "x.tar", available=10 * 2**20, data=3 * 2**20)
    assert caught.value.code is errors.MEM_MACHINE and "3.0 MiB of them for data, 10.0 MiB are free" in str(
        caught.value
    )
    memory.check_host(manifest(H100), "x.tar", available=400 * 2**20)


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
        assert driver.served(archs, capability) == arch
    assert driver.served(("sm_86",), 80) is None and driver.served(("sm_80",), 90) is None
    assert driver.served(("sm_103", "sm_100"), 101) == "sm_100"


def test_the_target_with_a_cubin_comes_first_and_ptx_after_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    old = attrs.evolve(H100, name="old", archs=("sm_75", "compute_75"))
    new = attrs.evolve(H100, name="new", archs=("sm_80", "compute_80"))
    made = manifest(old, new)
    for capability, name, arch in ((75, "old", "sm_75"), (89, "new", "sm_80"), (100, "old", "compute_75")):
        monkeypatch.setenv("FAKE_CUDA_CC", str(capability))
        choice = device.choose(made, "x.tar")
        assert (choice.target.name, choice.has.arch) == (name, arch)
        assert choice.words == f"cuda:0, Fake GPU, kernels for {arch}"


def test_the_gpu_first_then_the_cpu_which_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    made = manifest(CPU, H100)
    assert device.choose(made, "x.tar").target is H100
    assert device.choose(made, "x.tar", device="cpu").target is CPU
    assert device.choose(made, "x.tar", target=CPU.name).words == ""
    monkeypatch.setenv("FAKE_CUDA_INIT", "100")
    choice = device.choose(made, "x.tar")
    assert choice.target is CPU and choice.row is device.ROWS["cpu"]
    assert choice.words == "cpu-any, on the CPU, since the NVIDIA driver sees no GPU (E-DEVICE-011)"
    for wish in ({"device": "cuda"}, {"target": "nvidia-h100"}):
        with pytest.raises(RunError, match="sees no GPU"):
            device.choose(made, "x.tar", **wish)


@pytest.mark.parametrize("name, value", [("FAKE_CUDA_DRIVER", "12080"), ("FAKE_CUDA_INIT", "802")])
def test_a_gpu_that_could_be_used_is_not_passed_over(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(RunError):
        device.choose(manifest(CPU, H100), "x.tar")


def test_the_device_by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_CUDA_DEVICES", "2")
    choice = device.choose(manifest(H100), "x.tar", device="cuda:1")
    assert choice.number == choice.has.gpu.number == 1 and choice.words.startswith("cuda:1, ")
    with pytest.raises(RunError, match=re.escape("there is no GPU 2: 2 visible, counted from 0")) as caught:
        device.choose(manifest(CPU, H100), "x.tar", device="cuda:2")
    assert caught.value.code is errors.DEVICE_NONE


def test_a_device_that_the_artifact_has_no_library_for() -> None:
    for made, wish, words in (
        (manifest(CPU), "cuda:0", "there is no library for cuda (it has cpu-any (cpu))"),
        (manifest(H100), "cpu", "there is no library for cpu (it has nvidia-h100 (cuda))"),
    ):
        with pytest.raises(RunError, match=re.escape(words)) as caught:
            device.choose(made, "x.tar", device=wish)
        assert caught.value.code is errors.TARGET_DEVICE and caught.value.code.exit == 3


@pytest.mark.parametrize("value", ["gpu", "cuda:", "cuda:-1", "cuda:a", "CPU", "cpu:0", ""])
def test_the_option_is_read_strictly(value: str, tmp_path: Path, capsys: Captured) -> None:
    assert go(tmp_path, manifest(CPU), f"--device={value}") == 2
    assert "it should be cpu, cuda, or cuda: and a number" in one_error(capsys.readouterr().err, "E-CLI-002")


def test_row_52_no_runtime_of_cuda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    monkeypatch.undo()  # what is refused here is loaded after the checks
    monkeypatch.setattr(cudart, "NAME", "libcudart-that-is-not-there.so.13")
    with pytest.raises(RunError) as caught:
        cudart.load("x.tar")
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
        ("CUDA Runtime Error: cudaErrorStreamCaptureUnsupported (900): not permitted", errors.DEVICE_CALL),
        ("Argument 0 has another shape", errors.DEVICE_CALL),
    ],
)
def test_row_71_what_a_failure_in_the_run_means(text: str, code: errors.Code) -> None:
    error = cudart.fault("phase train failed", text)
    assert error.code is code and error.code.exit == 3 and text in str(error)


def test_the_fake_is_a_driver(fake: str) -> None:
    assert driver.survey(0) == driver.Gpu(0, "Fake GPU", 90, 13000)
    assert ctypes.CDLL(fake).cuInit(0) == 0 and driver.Driver().free(0) == 2**34
