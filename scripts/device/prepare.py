"""Makes the folder that is taken to a machine with a GPU: artifacts, what the CPU makes of them, wheels.

Everything that needs a compiler or a network happens here; there, neither is needed.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path[:0] = [str(ROOT), str(HERE), str(ROOT / "scripts/bench")]

from fourfold import fourfold  # noqa: E402

CPU = "cpu-x86-64-v3"
MOST = 64 * 2**20  # bytes of the folder
STACKS = (1, 4)
GEMMS = (2048, 4096, 8192)

# name -> run file, precision, steps that are compared, steps that are timed
RUNS: dict[str, tuple[str, str, int, int]] = {
    "tiny-generate": ("tiny-generate/run.sx", "f32", 20, 50),
    "route-planner": ("route-planner/run.sx", "f32", 3, 20),
    "characters": ("characters/run.sx", "f32", 3, 20),
    "characters-bf16": ("characters/run.sx", "bf16", 3, 20),
}
# Small enough for kernels that run on the CPU, thread by thread.
DRY: dict[str, tuple[str, str, int, int]] = {
    "tiny-generate": ("tiny-generate/run.sx", "f32", 2, 1),
    "route-planner": ("route-planner/small.sx", "f32", 1, 1),
    "characters": ("characters/run.sx", "f32", 1, 1),
    "characters-bf16": ("characters/run.sx", "bf16", 1, 1),
}
NARROW = {
    "(def width 128)": "(def width 32)",
    "(def layers 2)": "(def layers 1)",
    "(def batch-size 16)": "(def batch-size 2)",
}


def run_file(name: str, given: str, precision: str, folder: Path, narrow: bool) -> Path:
    """A copy of an example, with four microbatches and the precision asked for."""
    source = ROOT / "examples" / given
    copy = folder / "sources" / name
    shutil.copytree(source.parent, copy)
    for path in copy.glob("*.sx"):
        text = path.read_text(encoding="utf-8")
        for old, new in NARROW.items() if narrow else ():
            text = text.replace(old, new)
        text = fourfold(text)
        text = text.replace(" :seed ", f" :precision :{precision} :seed ") if precision != "f32" else text
        path.write_text(text, encoding="utf-8")
    return copy / source.name


def build(run: Path, output: Path, stack: int, target: str, dry: bool) -> None:
    if dry:
        from tests.cuda_on_cpu import artifact

        artifact.build(run, output, "--stack", str(stack), "--force", target=f"{CPU},{target}")
        return
    command = [sys.executable, "-m", "sexpgpu", "build", run, "-o", output, "--target", f"{CPU},{target}"]
    command += ["--stack", stack, "--force"]
    subprocess.run([*map(str, command)], check=True, cwd=ROOT, stdout=subprocess.DEVNULL)


def expected(tar: Path, data: Path, steps: int) -> dict[str, Any]:
    """What the CPU makes of the artifact."""
    import record

    return record.record(str(tar), str(data), "cpu", steps)


def artifacts(folder: Path, target: str, dry: bool, only: str) -> list[dict[str, Any]]:
    import numpy as np

    rows = []
    for name, (given, precision, steps, timed) in (DRY if dry else RUNS).items():
        if only not in name:
            continue
        run = run_file(name, given, precision, folder, dry and name.startswith("characters"))
        for stack in STACKS:
            build(run, folder / "artifacts" / f"{name}-{stack}.tar", stack, target, dry)
        np.savez(folder / f"{name}.npz", **expected(folder / "artifacts" / f"{name}-1.tar", run.parent, steps))
        rows.append({"name": name, "precision": precision, "steps": steps, "timed": timed, "data": f"sources/{name}"})
        print(f"{name}: built and recorded", flush=True)
    return rows


def gemms(folder: Path, target: str, dry: bool) -> list[dict[str, Any]]:
    """A run of nothing but bfloat16 products, for each size."""
    rows = []
    for n in (128,) if dry else GEMMS:
        run = folder / "sources" / f"gemm-{n}.sx"
        text = (HERE / "gemm.sx").read_text(encoding="utf-8").replace("(def n 4096)", f"(def n {n})")
        run.write_text(text.replace("(def trips 20)", "(def trips 2)") if dry else text, encoding="utf-8")
        build(run, folder / "artifacts" / f"gemm-{n}.tar", 1, target, dry)
        rows.append({"n": n, "trips": 2 if dry else 20})
        print(f"gemm of {n}: built", flush=True)
    return rows


def drivers() -> dict[str, str]:
    """What a process needs to find the drivers that run kernels on the CPU."""
    from tests.cuda_on_cpu import artifact

    made = artifact.environment()
    return {name: made[name] for name in ("LD_LIBRARY_PATH", "PYTHONPATH")}


def wheels(folder: Path, python: str) -> None:
    """The runner and all that it needs, for ``python`` on x86-64 Linux."""
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", str(folder), str(ROOT)], check=True)
    (own,) = folder.glob("sexpgpu-*.whl")
    platforms = [f"--platform=manylinux_2_{n}_x86_64" for n in (17, 27, 28, 34)] + ["--platform=manylinux2014_x86_64"]
    only = ["--only-binary=:all:", f"--python-version={python}", *platforms, "--dest", str(folder)]
    subprocess.run([*pip, "download", *only, f"{own}[gpu]"], check=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="is made anew")
    parser.add_argument("--target", default="nvidia-h200")
    parser.add_argument("--python", default="3.12", help="the Python of that machine")
    parser.add_argument("--dry-run", action="store_true", help="kernels that run on the CPU, in small")
    parser.add_argument("--only", default="", help="runs whose name contains this")
    args = parser.parse_args()
    shutil.rmtree(args.folder, ignore_errors=True)
    (args.folder / "artifacts").mkdir(parents=True)
    (args.folder / "sources").mkdir()
    plan: dict[str, Any] = {"target": args.target, "dry": args.dry_run, "stacks": STACKS}
    plan["python"] = args.python
    plan["runs"] = artifacts(args.folder, args.target, args.dry_run, args.only)
    plan["gemms"] = gemms(args.folder, args.target, args.dry_run) if args.only in "gemm" else []
    (args.folder / "plan.json").write_text(json.dumps(plan, indent=1) + "\n", encoding="utf-8")
    if args.dry_run:
        (args.folder / "environment.json").write_text(json.dumps(drivers()), encoding="utf-8")
    else:
        (args.folder / "wheels").mkdir()
        wheels(args.folder / "wheels", args.python)
    for name in ("check.py", "work.py", "record.py"):
        shutil.copy(HERE / name, args.folder / name)
    pack(args.folder)
    size = sum(path.stat().st_size for path in args.folder.rglob("*") if path.is_file())
    print(f"{args.folder}: {size / 2**20:.1f} MiB")
    if size > MOST:
        raise SystemExit(f"that is over {MOST / 2**20:.0f} MiB")
    return 0


def pack(folder: Path) -> None:
    """The artifacts share a runtime and most kernels: one compressed file holds them in a fraction of their sizes."""
    with tarfile.open(folder / "artifacts.tar.xz", "w:xz", preset=6) as tar:
        for path in sorted((folder / "artifacts").iterdir()):
            tar.add(path, path.name)
    shutil.rmtree(folder / "artifacts")


if __name__ == "__main__":
    sys.exit(main())
