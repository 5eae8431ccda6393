#!/usr/bin/env python3
"""Runs what scripts/device_check --prepare has put beside this file on the machine's GPU: one JSON file, one table.

    python3 check.py [--json FILE] [--device cuda] [--minutes 8] [--torch PYTHON]

Needs Python of the version that was prepared for, and nothing of the network; PyTorch where there is one, for the times
of its products. Exit status 1 where a check fails.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
Row = dict[str, Any]
LOSS = {"f32": 1e-4, "bf16": 2.0**-8}  # how far a loss may be from the CPU's, relative: some hundred roundings; one


class Check:
    """What was found, and the time that is left."""

    def __init__(self, args: argparse.Namespace, work: Path) -> None:
        self.args, self.work = args, work
        self.plan = json.loads((HERE / "plan.json").read_text(encoding="utf-8"))
        self.end = time.monotonic() + 60 * args.minutes
        self.env = {**os.environ, "PYTHONPATH": f"{work / 'site'}:{HERE}", "TVM_FFI_DISABLE_TORCH_C_DLPACK": "1"}
        self.dry = bool(self.plan["dry"])
        if self.dry:
            found = json.loads((HERE / "environment.json").read_text(encoding="utf-8"))
            self.env |= found | {"PYTHONPATH": f"{HERE}:{found['PYTHONPATH']}"}
        self.rows: list[Row] = []
        self.device, self.torch_is = "", ""  # in words; "" until it was asked
        self.no_torch = ""  # why there are no times of PyTorch

    def install(self) -> None:
        """The artifacts, and the wheels into a folder of their own."""
        with tarfile.open(HERE / "artifacts.tar.xz") as tar:
            tar.extractall(self.work, filter="data")
        if not self.dry:
            pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target"]
            subprocess.run([*pip, str(self.work / "site"), *map(str, (HERE / "wheels").glob("*.whl"))], check=True)

    def told(self, what: str, name: str, ok: bool | None, **more: Any) -> None:
        """Keep a row and say it. ``ok``: None where nothing was asked."""
        self.rows.append({"what": what, "name": name, "ok": ok, **more})
        mark = {True: "ok  ", False: "FAIL", None: "    "}[ok]
        print(mark, what, name, " ".join(f"{k}={shown(v)}" for k, v in more.items()), flush=True)

    def child(self, python: str, command: list[Any], env: dict[str, str]) -> str:
        left = max(1.0, self.end - time.monotonic())
        done = subprocess.run(
            [python, *map(str, command)], env=env, capture_output=True, text=True, timeout=left, cwd=self.work
        )
        if done.returncode:
            raise Failed((done.stderr.strip() or done.stdout.strip())[-600:])
        return done.stdout

    def job(self, job: str, **more: Any) -> dict[str, Any]:
        asked = json.dumps({"job": job, "device": self.args.device, **more})
        return json.loads(self.child(sys.executable, [HERE / "work.py", asked], self.env).splitlines()[-1])

    def tar(self, run: Row, stack: int) -> str:
        return str(self.work / f"{run['name']}-{stack}.tar")

    def attempt(self, what: str, name: str, call: Any) -> None:
        """One check; what goes wrong in it fails it and ends nothing else."""
        try:
            call()
        except (Failed, subprocess.TimeoutExpired) as fault:
            self.told(what, name, False, why=str(fault))

    def against_cpu(self, run: Row) -> None:
        """Rows, losses, gradients and parameters as on the CPU; the same at another time, with graphs, and stacked.

        f32: the CPU's bits, all of them. bf16: products on tensor cores are summed in the hardware's order, so that two
        choices that are near may fall the other way; the first losses are bound, to the spacing of bfloat16."""
        common = {"data": str(HERE / run["data"]), "steps": run["steps"], "want": str(HERE / f"{run['name']}.npz")}
        first = str(self.work / f"{run['name']}.first.npz")
        made = self.job("record", tar=self.tar(run, 1), keep=first, graphs=False, **common)
        if not self.device:
            self.device = made["device"]
            print(f"     {self.device}", flush=True)
        near = made["worst"]["loss"] < LOSS[run["precision"]]
        self.told("losses as on the CPU", run["name"], near, worst=made["worst"])
        if run["precision"] == "f32":
            self.told("bits as on the CPU", run["name"], not made["unequal"], **counted(made))
        again = {**common, "want": first, "keep": str(self.work / "again.npz")}
        for what, stack, graphs in (("run to run", 1, False), ("with graphs", 1, True), ("stacked 4", 4, True)):
            job = {"tar": self.tar(run, stack), "graphs": graphs, **again}
            self.attempt(what, run["name"], lambda w=what, j=job: self.same(w, run, j))

    def same(self, what: str, run: Row, job: dict[str, Any]) -> None:
        made = self.job("record", **job)
        self.told(what, run["name"], bool(made["compared"]) and not made["unequal"], **counted(made))

    def resumed(self, run: Row) -> None:
        """A run stopped after half its steps and taken up again leaves the files of one that was not."""
        steps = max(2, run["steps"])
        self.steps(run, "whole", steps)
        self.steps(run, "parts", steps // 2)
        self.steps(run, "parts", steps, "--resume")
        left = [self.checkpoint(run, out, steps) for out in ("whole", "parts")]
        self.told("stopped and resumed", run["name"], left[0] == left[1], files=len(left[0]))

    def steps(self, run: Row, out: str, steps: int, *more: str) -> None:
        command = ["-m", "artifacts.run", self.tar(run, 1), "--out", self.work / f"{run['name']}-{out}"]
        command += ["--data", HERE / run["data"], "--steps", steps, "--device", self.args.device, "-q", *more]
        self.child(sys.executable, command, self.env)

    def checkpoint(self, run: Row, out: str, steps: int) -> dict[str, bytes]:
        folder = self.work / f"{run['name']}-{out}" / "checkpoints" / f"step-{steps:09d}"
        return {path.name: path.read_bytes() for path in sorted(folder.glob("*.safetensors"))}

    def timed(self, run: Row) -> None:
        for stack in self.plan["stacks"]:
            name = f"{run['name']} stacked {stack}"
            data = str(HERE / run["data"])
            made = self.job("times", tar=self.tar(run, stack), data=data, timed=run["timed"])
            self.told("ms", name, None, **made)

    def gemm(self, one: Row) -> None:
        """Ours and PyTorch's, in turns."""
        n, ours, theirs = one["n"], [], []
        tar, flops = str(self.work / f"gemm-{n}.tar"), 2 * n**3
        for _ in range(1 if self.dry else 3):
            made = self.job("times", tar=tar, data=str(HERE), timed=1 if self.dry else 10)
            ours.append(made["generate.step"] / one["trips"])
            theirs.append(self.torch(one))
        mine, other = min(ours), min((t for t in theirs if t is not None), default=None)
        more = (
            {"torch": "none"}
            if other is None
            else {"torch_ms": other, "torch_tflops": flops / other / 1e9, "ratio": other / mine}
        )
        self.told("bf16 product", f"{n}", None, ms=mine, tflops=flops / mine / 1e9, **more)

    def torch(self, one: Row) -> float | None:
        """PyTorch's milliseconds. None where it cannot tell them, which is said once, and not asked again."""
        if self.no_torch:
            return None
        asked = json.dumps({"job": "torch_gemm", "timed": 10, **one})
        env = {k: v for k, v in self.env.items() if k != "PYTHONPATH"}
        try:
            made = json.loads(self.child(self.args.torch, [HERE / "work.py", asked], env).splitlines()[-1])
        except (Failed, OSError) as fault:
            self.no_torch = str(fault).splitlines()[-1]
            print(f"     no times of PyTorch from {self.args.torch}: {self.no_torch}", flush=True)
            return None
        self.torch_is = made["version"]
        return made["ms"]

    def all(self) -> None:
        self.install()
        for run in self.plan["runs"]:
            self.attempt("as on the CPU", run["name"], lambda run=run: self.against_cpu(run))
            self.attempt("stopped and resumed", run["name"], lambda run=run: self.resumed(run))
        for one in self.plan["gemms"]:
            self.attempt("bf16 product", str(one["n"]), lambda one=one: self.gemm(one))
        for run in self.plan["runs"]:
            self.attempt("ms", run["name"], lambda run=run: self.timed(run))


class Failed(RuntimeError):
    """A child ended with a status other than 0: its last words."""


def shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k}: {shown(v)}" for k, v in value.items()) + "}"
    return str(value)


def counted(made: dict[str, Any]) -> dict[str, Any]:
    names = made["unequal"]
    return {"tensors": made["compared"], **({"unequal": len(names), "names": names[:3]} if names else {})}


def table(rows: list[Row]) -> str:
    asked = [r for r in rows if r["ok"] is not None]
    lines = ["| check | run | |", "| --- | --- | --- |"]
    lines += [f"| {r['what']} | {r['name']} | {'ok' if r['ok'] else 'FAILED'} |" for r in asked]
    lines += ["", "| bf16 product | ms | TFLOP/s | PyTorch's ms | ratio |", "| --- | --- | --- | --- | --- |"]
    for r in rows:
        if r["what"] == "bf16 product" and "ms" in r:
            cells = [r["name"], *(shown(r.get(k, "none")) for k in ("ms", "tflops", "torch_ms", "ratio"))]
            lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "| ms a step | step | without graphs | by phase, each waited for |", "| --- | --- | --- | --- |"]
    for r in rows:
        if r["what"] == "ms" and "step" in r:
            parts = {k: v for k, v in r.items() if k not in ("what", "name", "ok", "step", "plain")}
            lines.append(f"| {r['name']} | {shown(r['step'])} | {shown(r['plain'])} | {shown(parts)[1:-1]} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--minutes", type=float, default=8)
    parser.add_argument("--torch", default=sys.executable, help="a Python that has PyTorch")
    args = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as work:
        check = Check(args, Path(work))
        if not check.dry and check.plan["python"] != f"{sys.version_info.major}.{sys.version_info.minor}":
            parser.error(f"the wheels here are for Python {check.plan['python']}, and this is {sys.version.split()[0]}")
        check.all()
    seconds = round(time.monotonic() - began, 1)
    print(f"     {seconds} s")
    if args.json:
        told = {"target": check.plan["target"], "dry": check.dry, "device": check.device, "seconds": seconds}
        told |= {"torch": check.torch_is or f"none: {check.no_torch}", "rows": check.rows}
        args.json.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    print(table(check.rows))
    return 0 if all(row["ok"] is not False for row in check.rows) else 1


if __name__ == "__main__":
    sys.exit(main())
