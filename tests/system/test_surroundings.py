"""What a program is started in: streams, folders, users and what a killed one left. None of it is a fault of ours."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from artifacts.base import atomic_files
from surroundings import entry, temporary
from tests.artifacts import toy
from tests.conftest import EXAMPLES, ONE, build, sexpgpu
from tests.support import run_text

ROOT = EXAMPLES.parent
SITE = next(path for path in sys.path if path.endswith("site-packages"))
TOY = (
    "import sys; from tests.artifacts import toy; from artifacts.run import main; "
    "sys.exit(main(sys.argv[1:], toy.device))"
)
BARE = {"PATH": os.environ["PATH"], "PYTHONPATH": f"{ROOT}{os.pathsep}{SITE}", "OPENBLAS_NUM_THREADS": "1"}
Done = subprocess.CompletedProcess[str]


def called(*command: object, **how) -> Done:
    how = {"env": BARE, "capture_output": True, "text": True, "errors": "surrogateescape", **how}
    return subprocess.run([sys.executable, *map(str, command)], **how)


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    path = tmp_path / "run.sx"
    path.write_text(run_text())
    return path


@pytest.fixture
def artifact(tmp_path: Path) -> Path:
    return Path(toy.write(tmp_path))


# Streams that cannot encode a name

ENCODINGS = (
    {"PYTHONIOENCODING": "ascii"},
    {"PYTHONIOENCODING": "latin-1:strict"},
    {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
)
NAMES = ("ä漢", "b\udcff")


@pytest.mark.parametrize("name", NAMES, ids=["letters", "bytes"])
@pytest.mark.parametrize("encoding", ENCODINGS, ids=["ascii", "latin-1", "C"])
def test_what_a_stream_cannot_encode_is_escaped_by_every_command(
    tmp_path: Path, run_file: Path, artifact: Path, encoding: dict[str, str], name: str
) -> None:
    env = BARE | encoding
    paths = [tmp_path / f"{name}{suffix}" for suffix in (".sx", ".tar")]
    run_file.rename(paths[0]), artifact.rename(paths[1])
    said = {}
    for command in (["check", paths[0]], ["explain", paths[0]], ["inspect", paths[1]]):
        done = called("-m", "sexpgpu", *command, env=env)
        assert (done.returncode, done.stderr) == (0, "") and done.stdout
        said[command[0]] = done.stdout
    assert re.search(r"\\x|\\u|ä", said["check"])
    out = tmp_path / f"{name}-out"
    trained = called("-c", TOY, paths[1], "--out", out, "--data", tmp_path, "--steps", "1", env=env)
    assert (trained.returncode, trained.stderr) == (0, "")
    assert "params sha256:" in trained.stdout and "standard output is lost" not in trained.stderr
    lost = called("-m", "sexpgpu", "check", tmp_path / f"{name}-none.sx", env=env)
    assert lost.returncode == 1 and lost.stderr.startswith("error[E-READ-001]: ") and lost.stderr.count("\n") == 1


@pytest.mark.build
def test_a_build_whose_name_cannot_be_encoded_says_its_hash(tmp_path: Path, run_file: Path) -> None:
    output = tmp_path / "ä漢.tar"
    done = called("-m", "sexpgpu", "build", run_file, "-o", output, "--target", ONE, env=BARE | ENCODINGS[0])
    assert (done.returncode, done.stderr) == (0, "") and r"\xe4\u6f22.tar: sha256:" in done.stdout
    told = json.loads(called("-m", "sexpgpu", "verify", output, "--output-format", "json").stdout)
    assert told["hash"] in done.stdout


# The current folder

OTHERS = """
argparse ast attr attrs copy dataclasses difflib hashlib inspect json logging lowering ml_dtypes
multiprocessing numpy pathlib pickle random safetensors schedules shutil socket statistics subprocess surroundings
tempfile threading tqdm traceback tvm tvm_ffi ziglang
"""  # what Python itself loads before it runs a module is left out: contextlib and its like


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    """A folder with a file for each module that a program may ask for, none of which may be imported."""
    folder = tmp_path / "foreign"
    folder.mkdir()
    for name in OTHERS.split():
        (folder / f"{name}.py").write_text("raise SystemExit(f'{__name__} of the current folder was imported')\n")
    return folder


def test_nothing_in_the_current_folder_is_imported(
    tmp_path: Path, foreign: Path, run_file: Path, artifact: Path
) -> None:
    for command in (["check", run_file], ["explain", run_file], ["inspect", artifact]):
        done = called("-m", "sexpgpu", *command, cwd=foreign)
        assert (done.returncode, done.stderr) == (0, "")
    done = called("-m", "artifacts.run", artifact, "--out", tmp_path / "out", "--data", tmp_path, cwd=foreign)
    assert done.returncode == 3 and done.stderr.startswith("error[E-ENV-011]: ")  # the toy has no library to load


WORK = """
import sys, random, os
from lowering.codegen.workers import Workers
with Workers(2, ("lowering.codegen.workers", "json")) as workers:
    print(*workers.map(eval, [("(__import__('random').__file__, __import__('json').__file__)[0]",)] * 2))
    print(*set(workers.map(eval, [("__import__('os').getcwd()",)] * 2)))
    print(*set(workers.map(eval, [("__import__('tempfile').gettempdir()",)] * 2)))
"""


@pytest.mark.build
@pytest.mark.parametrize("options", [[], ["-E"], ["-P"]])
def test_processes_that_work_import_nothing_of_the_current_folder(
    foreign: Path, options: list[str], tmp_path: Path
) -> None:
    script = tmp_path / "work.py"
    script.write_text(f"import sys\nsys.path[:0] = {[str(ROOT), SITE]}\n{WORK}")
    done = called(*options, script, cwd=foreign)
    assert done.returncode == 0, done.stderr
    modules, where, temporary_files = done.stdout.splitlines()
    assert "foreign" not in modules and where == temporary_files != str(foreign)
    assert not Path(where).exists()


@pytest.mark.build
def test_a_script_of_any_kind_is_not_run_again_by_its_processes(tmp_path: Path) -> None:
    script = tmp_path / "unguarded.py"
    script.write_text(f"print('begun')\n{WORK}")
    done = called(script)
    assert done.returncode == 0 and done.stdout.count("begun") == 1


@pytest.mark.build
def test_processes_find_what_the_parent_found(tmp_path: Path, run_file: Path) -> None:
    """Packages that PYTHONPATH alone leads to, as after pip install --target: the interpreter has no others."""
    done = called("-S", "-m", "sexpgpu", "build", run_file, "-o", tmp_path / "x.tar", "--target", ONE)
    assert (done.returncode, done.stderr) == (0, "")
    script = f"import sys\nsys.path[:0] = {[str(ROOT), SITE]}\n{WORK}"
    moved = called("-S", "-c", script, env={"PATH": os.environ["PATH"]}, cwd=tmp_path)
    assert moved.returncode == 0, moved.stderr


@pytest.mark.build
def test_a_pytorch_that_is_installed_is_not_loaded(tmp_path: Path, tiny: Path) -> None:
    """tvm_ffi would import it, in whatever state it is."""
    (tmp_path / "torch.py").write_text("raise RuntimeError('it is broken')\n")
    env = BARE | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{BARE['PYTHONPATH']}"}
    done = called("-m", "artifacts.run", tiny, "--out", tmp_path / "out", "--steps", "1", env=env)
    assert (done.returncode, done.stderr) == (0, "")
    code = "from sexpgpu.build import targets\ntargets.need_extra()\nfrom lowering.codegen.workers import Workers\n"
    code = f"from surroundings import entry\nentry.enter()\n{code}"
    job = """("__import__('sys').modules.get('torch')",)"""
    code += f"with Workers(1, ('lowering.codegen.objects',)) as workers: print(workers.map(eval, [{job}]))"
    done = called("-c", code, env=env)
    assert (done.returncode, done.stdout) == (0, "[None]\n"), done.stderr


@pytest.mark.build
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
def test_a_folder_that_is_closed_to_the_user_is_no_fault(tmp_path: Path) -> None:
    closed, script = tmp_path / "closed", f"import sys\nsys.path[:0] = {[str(ROOT), SITE]}\n{WORK}"
    closed.mkdir(mode=0o700)
    become = "import os; os.setgroups([]); os.setgid(12345); os.setuid(12345)\n"
    done = called("-c", f"import tvm\n{become}{script}", cwd=closed)
    assert done.returncode == 0, done.stderr


GONE = 'cd "$1" && rmdir "$1" && shift && exec "$@"'


def from_nowhere(folder: Path, *command: object) -> Done:
    """A command whose current folder has been deleted."""
    folder.mkdir()
    words = ["sh", "-c", GONE, "sh", folder, sys.executable, *command]
    return subprocess.run([*map(str, words)], capture_output=True, text=True, env=BARE)


def test_a_deleted_folder_is_no_fault_of_absolute_paths(tmp_path: Path, run_file: Path, artifact: Path) -> None:
    gone = tmp_path / "gone"
    for command in (["check", run_file], ["explain", run_file], ["inspect", artifact], ["diff", artifact, artifact]):
        done = from_nowhere(gone, "-m", "sexpgpu", *command)
        assert (done.returncode, done.stderr) == (0, "")
    done = from_nowhere(gone, "-c", TOY, artifact, "--out", tmp_path / "out", "--data", tmp_path, "--steps", "1")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("words", "status", "path"),
    [
        (["check", "run.sx"], 1, "run.sx"),
        (["explain", "run.sx"], 1, "run.sx"),
        (["build", "RUN", "-o", "x.tar"], 5, "x.tar"),
        (["build", "RUN", "-o", "/x.tar", "--dump", "d"], 5, "d"),
        (["build", "RUN", "-o", "/x.tar", "--records", "r"], 1, "r"),
        (["tune", "RUN", "--local", "--target", ONE, "--trials", "1", "-o", "t"], 5, "t"),
        (["verify", "a.tar"], 1, "a.tar"),
        (["diff", "TOY", "b.tar"], 1, "b.tar"),
    ],
)
def test_a_relative_path_in_a_deleted_folder_is_named(
    tmp_path: Path, run_file: Path, artifact: Path, words: list[str], status: int, path: str
) -> None:
    made = [{"RUN": run_file, "TOY": artifact}.get(word, word) for word in words]
    done = from_nowhere(tmp_path / "gone", "-m", "sexpgpu", *made)
    assert done.returncode == status and done.stderr.count("\n") == 1
    assert f"]: {path}: the current folder has been deleted" in done.stderr


@pytest.mark.parametrize(
    "words", [["a.tar", "--out", "/x"], ["TOY", "--out", "o"], ["TOY", "--out", "/x", "--data", "d"]]
)
def test_the_runner_names_a_relative_path_too(tmp_path: Path, artifact: Path, words: list[str]) -> None:
    made = [artifact if word == "TOY" else word for word in words]
    done = from_nowhere(tmp_path / "gone", "-m", "artifacts.run", *made)
    assert done.returncode == 5 and done.stderr.count("\n") == 1
    assert f"]: {words[-1] if words[0] == 'TOY' else 'a.tar'}: the current folder has been deleted" in done.stderr


@pytest.mark.build
def test_processes_work_for_one_whose_folder_is_gone(tmp_path: Path) -> None:
    done = from_nowhere(tmp_path / "gone", "-c", WORK)
    assert done.returncode == 0, done.stderr


# Users and their folders

NOBODY = "import os, sys; os.getuid = lambda: 4_123_456_789; from {} import main; sys.exit(main(sys.argv[1:]))"
HOMES = (None, "", "~", "a/b", "/nonexistent")


@pytest.mark.build
@pytest.mark.parametrize("home", [None, "~"])
def test_a_user_without_a_name_or_a_home_builds_the_same_artifact(
    tmp_path: Path, run_file: Path, home: str | None
) -> None:
    env = BARE if home is None else BARE | {"HOME": home}
    options = ["build", run_file, "-o", tmp_path / "nobody.tar", "--target", ONE, "--jobs", "1"]
    done = called("-c", NOBODY.format("sexpgpu.cli.main"), *options, env=env)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "nobody.tar").read_bytes() == build(run_file, tmp_path / "x.tar").read_bytes()


@pytest.mark.parametrize("home", HOMES)
def test_a_home_is_always_found(home: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 4_123_456_789)
    monkeypatch.delenv("HOME", raising=False)
    if home is not None:
        monkeypatch.setenv("HOME", home)
    entry.find_home()
    assert Path.home().is_absolute()
    assert os.environ["HOME"] == ("/nonexistent" if home == "/nonexistent" else entry.NO_HOME)


def test_warnings_are_never_said_nor_raised(tmp_path: Path, artifact: Path) -> None:
    code = f"import warnings; {TOY.replace('sys.exit(', 'done = (').rstrip()}; warnings.warn('x'); sys.exit(done)"
    options = [artifact, "--out", tmp_path / "out", "--data", tmp_path, "--steps", "1"]
    done = called("-W", "error", "-c", code, *options, env=BARE | {"PYTHONWARNINGS": "error"})
    assert (done.returncode, done.stderr) == (0, "")


# What a killed process left


def left_by(code: str) -> Done:
    """Python's ``code``, which kills itself."""
    done = called("-c", f"import os, signal\n{code}\nos.kill(os.getpid(), signal.SIGKILL)")
    assert done.returncode == -signal.SIGKILL, done.stderr
    return done


def test_what_a_killed_writer_left_is_swept_by_the_next(tmp_path: Path) -> None:
    mine, other = f".tmp-{os.getpid()}-0123abcd", [".tmp-x", ".tmp-12-0123abcd.tar", "tmp-12-0123abcd", "notes"]
    left_by(f"from artifacts.base import atomic_files as files\nfiles._create_locked({str(tmp_path)!r})")
    (left,) = tmp_path.iterdir()
    for name in (mine, *other):
        (tmp_path / name).touch()
    (tmp_path / ".tmp-1-aaaaaaaa").symlink_to(tmp_path / "notes")
    name, fd = atomic_files._create_locked(str(tmp_path))  # of a process that writes
    past = time.time() - 10**6  # before this one began: the number has been used again
    (tmp_path / f".tmp-{os.getpid()}-99999999").touch()
    os.utime(tmp_path / f".tmp-{os.getpid()}-99999999", (past, past))
    atomic_files.replace(str(tmp_path / "x"), [b"new"])
    os.close(fd)
    found = {path.name for path in tmp_path.iterdir()}
    assert found == {"x", mine, *other, ".tmp-1-aaaaaaaa", os.path.basename(name)}
    assert not left.exists() and (tmp_path / "x").read_bytes() == b"new"


def test_a_file_of_another_user_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".tmp-1-aaaaaaaa").touch()
    past = time.time() - 10**9
    os.utime(tmp_path / ".tmp-1-aaaaaaaa", (past, past))
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: 4_123_456_789)
        atomic_files.replace(str(tmp_path / "x"), [b""])
    assert (tmp_path / ".tmp-1-aaaaaaaa").exists()
    atomic_files.replace(str(tmp_path / "x"), [b""])
    assert not (tmp_path / ".tmp-1-aaaaaaaa").exists()


@pytest.mark.build
def test_temporary_folders_of_killed_builds_are_swept_by_the_next() -> None:
    """With what multiprocessing put into them. The folder of one that lives stays."""
    with tempfile.TemporaryDirectory(dir="/tmp") as short:  # pytest's own are too long for a socket
        check_sweeping(Path(short))


def check_sweeping(tmp_path: Path) -> None:
    code = "from lowering.codegen.workers import Workers\nworkers = Workers(1, ())\nworkers.map(os.getpid, [()])"
    env = BARE | {"TMPDIR": str(tmp_path)}
    killed = called("-c", f"import os, signal\n{code}\nos.kill(os.getpid(), signal.SIGKILL)", env=env)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    (left,) = tmp_path.iterdir()
    assert any(path.name.startswith("pymp-") for path in left.iterdir())
    lives = "from surroundings import temporary\nimport os, sys\nprint(temporary.folder(os.getpid()), flush=True)\n"
    with subprocess.Popen(
        [sys.executable, "-c", f"{lives}sys.stdin.read()"], env=env, stdin=-1, stdout=-1, text=True
    ) as other:
        assert other.stdin and other.stdout
        theirs = other.stdout.readline().strip()
        done = called("-c", f"{lives}print(*os.listdir({str(tmp_path)!r}))", env=env)
        ours, names = done.stdout.splitlines()
        assert {*names.split()} == {os.path.basename(theirs), os.path.basename(ours)}
        other.stdin.close()
    assert not list(tmp_path.iterdir())


@pytest.mark.build
def test_a_folder_whose_path_is_long_serves_for_all_but_sockets(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 100)
    folder.mkdir()
    done = called("-c", WORK, env=BARE | {"TMPDIR": str(folder)})
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[2].startswith(f"{folder}/{temporary.PREFIX}") and not list(folder.iterdir())


@pytest.mark.parametrize("name", ["b\udcff", "none"])
def test_a_folder_for_temporary_files_that_will_not_do_is_passed_over(tmp_path: Path, name: str) -> None:
    if name != "none":
        (tmp_path / name).mkdir()
    code = "from surroundings import temporary; print(temporary.place())"
    done = called("-c", code, env=BARE | {"TMPDIR": str(tmp_path / name)})
    assert done.stdout == "/tmp\n"


def test_no_folder_for_temporary_files_is_told() -> None:
    code = "import tempfile, os; tempfile._candidate_tempdir_list = lambda: ['/dev/null/x']\n"
    code += "from surroundings import temporary; temporary.folder(os.getpid())"
    done = called("-c", code)
    assert "no folder for temporary files can be written to: 'TMPDIR'" in done.stderr


@pytest.mark.build
def test_a_build_in_a_folder_of_any_name(tmp_path: Path, run_file: Path) -> None:
    folder = tmp_path / "b\udcff ü"
    folder.mkdir()
    env = BARE | ENCODINGS[2] | {"TMPDIR": str(folder)}
    (folder / "run.sx").write_bytes(run_file.read_bytes())
    done = called(
        "-m", "sexpgpu", "build", "run.sx", "-o", "x.tar", "--target", ONE, "--dump", "d", cwd=folder, env=env
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert (folder / "x.tar").read_bytes() == build(run_file, tmp_path / "x.tar").read_bytes()
    assert sexpgpu("verify", folder / "x.tar", errors="surrogateescape").returncode == 0
    assert not [path for path in folder.iterdir() if path.name.startswith(temporary.PREFIX)]
