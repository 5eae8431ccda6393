"""The scripts and the project file: cheap things that would otherwise be found out on a stranger's machine."""

import io
import json
import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
EXTRAS = PROJECT["project"]["optional-dependencies"]
PROGRAMS = ("scripts/demo", "scripts/test", "scripts/generate_docs", "scripts/fuzz", ".ci/run")


def run(*argv: str, **more) -> subprocess.CompletedProcess:
    return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL, **more)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_script_may_be_executed(name):
    assert os.access(ROOT / name, os.X_OK)


@pytest.mark.parametrize("name", [*PROGRAMS[:2], ".ci/run", "scripts/venv.sh"])
def test_a_shell_script_parses(name):
    assert run("bash", "-n", name).stderr == ""


def test_wrong_usage_of_the_test_script_installs_nothing():
    done = run("scripts/test", "--quick")
    assert (done.returncode, done.stdout) == (2, "")
    assert "usage" in done.stderr


@pytest.mark.parametrize("extra", ["build", "cuda", "torch"])
def test_what_decides_bytes_or_bounds_is_pinned(extra):
    assert all("==" in requirement for requirement in EXTRAS[extra] if not requirement.startswith("sexpgpu["))


def test_the_runner_s_dependencies_are_these():
    names = {requirement.split("=")[0].split(">")[0] for requirement in PROJECT["project"]["dependencies"]}
    assert names == {"apache-tvm-ffi", "attrs", "ml_dtypes", "numpy", "safetensors", "tqdm"}
    assert "apache-tvm-ffi==0.1.14.post1" in PROJECT["project"]["dependencies"]


def test_versions_agree():
    import artifacts
    import sexpgpu

    assert PROJECT["project"]["version"] == sexpgpu.__version__ == artifacts.__version__


def test_generated_pages_are_current():
    done = run(sys.executable, "scripts/generate_docs", "--check")
    assert done.returncode == 0, done.stderr


def test_a_stale_page_is_found(tmp_path):
    """On a copy: the generator finds its root from its own place."""
    for name in ("sexpgpu", "lowering", "schedules", "artifacts", "surroundings", "tests"):
        (tmp_path / name).symlink_to(ROOT / name)
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    (tmp_path / "scripts").mkdir()
    for name in ("generate_docs", "module_map.py"):
        (tmp_path / "scripts" / name).write_bytes((ROOT / "scripts" / name).read_bytes())
    copy = str(tmp_path / "scripts" / "generate_docs")
    assert run(sys.executable, copy).returncode == 0
    for name, old, new in (("errors.md", "E-READ-001", "E-READ-000"), ("architecture.md", "`core.py`", "`gone.py`")):
        page = tmp_path / "docs" / name
        text = page.read_text(encoding="utf-8")
        page.write_text(text.replace(old, new, 1), encoding="utf-8")
        done = run(sys.executable, copy, "--check")
        assert (done.returncode, done.stderr) == (1, f"docs/{name} is not current: run scripts/generate_docs\n")
        page.write_text(text, encoding="utf-8")


def test_the_map_of_modules_has_a_line_for_every_module():
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    for package in ("sexpgpu", "lowering", "schedules", "artifacts", "surroundings"):
        for path in (ROOT / package).rglob("*.py"):
            room = path.parent.relative_to(ROOT).as_posix()
            section = text.partition(f"## `{room}`\n")[2].partition("\n###")[0]
            line = next((line for line in section.splitlines() if line.startswith(f"| `{path.name}` |")), "")
            assert path.name == "__init__.py" or len(line.split("|")[2].strip()) > 10, path


def test_the_tiny_data_is_what_its_script_makes(tmp_path):
    folder = ROOT / "examples" / "tiny-generate"
    assert run(sys.executable, str(folder / "data.py"), str(tmp_path)).returncode == 0
    for name in ("rows.npz", "held-out.npz"):
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes()


def test_no_held_out_row_of_the_tiny_data_is_trained_on():
    np = pytest.importorskip("numpy", reason="the build environment has NumPy; the language alone does not")
    folder = ROOT / "examples" / "tiny-generate"
    rows, held = (set(map(tuple, np.load(folder / name)["row"])) for name in ("rows.npz", "held-out.npz"))
    assert (len(rows), len(held), len(rows & held)) == (76, 32, 0)


def test_the_character_data_is_made_and_shown(tmp_path):
    folder = ROOT / "examples" / "characters"
    assert run(sys.executable, str(folder / "data.py"), str(tmp_path)).returncode == 0
    with zipfile.ZipFile(tmp_path / "train.npz") as made:
        assert made.namelist() == ["text.npy"]
    (tmp_path / "show.py").write_bytes((folder / "show.py").read_bytes())
    lines = (
        '{"run": "characters"}\n'
        '{"step": 200, "pass": "held-out", "loss": 1.5, "metrics": {"bits": 2.164}}\n'
        f'{{"diagnostic": "written", "step": 200, "values": [{[41] * 33 + [0, 2, 95]}]}}\n'
    )
    argv = [sys.executable, str(tmp_path / "show.py")]
    done = subprocess.run(argv, input=lines, capture_output=True, text=True, timeout=60)
    want = "step 200  loss 1.5000  bits 2.1640\n    " + "H" * 33 + " | \u23ce!~\n"
    assert (done.returncode, done.stdout) == (0, want), done.stderr


def test_the_demo_result_reads_the_run_s_files(tmp_path):
    """A run made by hand: one member, one log, two checkpoints."""
    import tarfile

    with tarfile.open(tmp_path / "run.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
        info = tarfile.TarInfo("manifest.json")
        info.size = 2
        tar.addfile(info, io.BytesIO(b"{}"))
    (tmp_path / "metrics.jsonl").write_text('{"schema": "x"}\n{"step": 2, "pass": "p", "metrics": {"accuracy": 0.5}}\n')
    for step in ("step-000000001", "step-000000002"):
        (tmp_path / "checkpoints" / step).mkdir(parents=True)
        (tmp_path / "checkpoints" / step / "params.safetensors").write_bytes(step.encode())
    argv = [sys.executable, "scripts/demo_result.py", str(tmp_path / "run.tar"), str(tmp_path), "p", "accuracy"]
    good, bad = run(*argv, "0.5"), run(*argv, "0.51")
    assert (good.returncode, bad.returncode) == (0, 1)
    assert "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a" in good.stdout  # sha256 of {}
    assert "step-000000002" in good.stdout


def test_the_table_of_builds_says_whether_they_are_linear_and_share_kernels(tmp_path):
    def row(layers, seconds, kernels):
        parts = dict.fromkeys(("trace", "lower", "schedule", "compile", "link"), 1.0)
        return {"layers": layers, "target": "t", "kernels": kernels, "sum": seconds, "wall": 1.0, **parts}

    (tmp_path / "a.json").write_text(json.dumps([row(2, 12.0, 9), row(4, 14.0, 9)]))
    (tmp_path / "b.json").write_text(json.dumps([row(8, 18.0, 9)]))
    (tmp_path / "c.json").write_text(json.dumps([row(8, 30.0, 10)]))
    read = [sys.executable, "scripts/bench/build", "--read", str(tmp_path / "a.json")]
    straight, bent = run(*read, str(tmp_path / "b.json")), run(*read, str(tmp_path / "c.json"))
    assert "sum = 10.0 s + 1.00 s a layer; the farthest build is 0% from that line" in straight.stdout, straight.stderr
    assert "share kernels: yes" in straight.stdout and "share kernels: NO" in bent.stdout and " 0% " not in bent.stdout
