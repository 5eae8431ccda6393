"""A benchmark of whole training steps: ours as a user runs it, and the same step by peers."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import common
from attrs import field, frozen
from common import Run, Summary, environment, summaries, table

OURS = "SexpGPU"
COMPARED, BOUND = 5, 1e-4  # steps; relative: sums in another order, through some forward passes and 5 updates
SGEMM_COUNTS = (1, 2)


@frozen
class Bench:
    """One step to compare.

    name:   of the run file's folder
    rows:   the records of one batch
    parts:  part of our step -> (the phases it is made of, GF of matrix products in it)
    peers:  name -> the command after the peers' Python, without its data arguments
    goals:  (summaries by name, our target) -> lines
    least:  a loss below this counts as this when losses are compared: for one whose terms cancel each other
    """

    name: str
    rows: int
    parts: Mapping[str, tuple[Sequence[str], float]]
    peers: Mapping[str, Sequence[str]]
    goals: Callable[[Mapping[str, Summary], str], list[str]]
    about: str = field(kw_only=True)
    least: float = field(kw_only=True, default=0.0)

    @property
    def folder(self) -> Path:
        return common.BENCH / self.name

    @property
    def gflop(self) -> float:
        return sum(work for _, work in self.parts.values())


def main(bench: Bench) -> int:
    args = arguments(bench)
    if args.read:
        found = [json.loads(Path(name).read_text(encoding="utf-8")) for name in args.read]
    else:
        found = [measure(bench, args)]
    result = joined(found)
    if args.json:
        Path(args.json).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(report(bench, result))
    return 0


def arguments(bench: Bench) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=bench.about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", help="default: the most demanding one that this machine can run")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=24, help=f"a run; the first {common.WARM} are not counted")
    parser.add_argument("--threads", type=int, help="for all; default: the cores this process may use")
    parser.add_argument("--only", nargs="+", default=["*"], help="parts of the names of those to run; ours always runs")
    parser.add_argument("--peers", type=Path, default=common.PEERS, help="their Python; scripts/bench/peers makes it")
    parser.add_argument("--artifact", type=Path, help="ours, built already")
    parser.add_argument("--json", help="write the result to this file")
    parser.add_argument("--read", nargs="+", help="run nothing: join the results in these files")
    return parser.parse_args()


def measure(bench: Bench, args: argparse.Namespace) -> dict[str, Any]:
    """Every round of everyone, what the machine can do, and the parts of the steps."""
    args.target = args.target or common.best_target()
    env = environment(args.threads)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(bench, folder, args)
        data = [folder / "rows.npz", folder / "initial.npz", args.steps]
        wanted = [w for w in bench.peers if any(o == "*" or o in w for o in args.only)]
        peers = {w: [args.peers, bench.folder / bench.peers[w][0], *data, *bench.peers[w][1:]] for w in wanted}
        runs, sgemm = [], dict.fromkeys(map(str, SGEMM_COUNTS), 0.0)
        for turn, who in common.alternated([OURS, *peers], args.rounds):
            if who == OURS:
                sgemm = {n: max(best, common.sgemm_peak(int(n))) for n, best in sgemm.items()}
                command = common.runner(folder / "run.tar", folder / f"out-{turn}", folder, args.steps)
                runs.append(common.run(who, args.target, [*command, *threads(args)], env))
            else:
                runs.append(common.run(who, "cpu", peers[who], env))
            told = runs[-1].row()
            print(f"round {turn + 1}: {who}: {told['ms_min']} / {told['ms_median']} ms", file=sys.stderr, flush=True)
        own = [sys.executable, common.BENCH / "ours.py", "parts", folder / "run.tar", folder, args.steps]
        parts = {OURS: common.talk(own, env)["parts"]}
    parts.update({r.who: r.notes["parts"] for r in runs if "parts" in r.notes})
    versions = {r.who: r.notes["version"] for r in runs if "version" in r.notes}
    return {
        "bench": bench.name,
        "machine": common.machine(),
        "threads": args.threads or len(os.sched_getaffinity(0)),
        "sgemm": sgemm,
        "versions": versions,
        "agreement": agreement(runs, bench.least),
        "parts": parts,
        "rows": [r.row() for r in runs],
    }


def threads(args: argparse.Namespace) -> list[Any]:
    return ["--threads", args.threads] if args.threads else []


def prepare(bench: Bench, folder: Path, args: argparse.Namespace) -> None:
    """The artifact, the rows, and our initial parameters for the peers."""
    if not args.peers.exists():
        raise SystemExit(f"{args.peers} does not exist: scripts/bench/peers makes it, or name another with --peers")
    rows = bench.rows * (args.steps + 8)  # the runner and the peers read ahead
    common.finish([sys.executable, bench.folder / "data.py", folder / "rows.npz", rows], environment())
    artifact = folder / "run.tar"
    if args.artifact:
        artifact.symlink_to(args.artifact.resolve())
    else:
        common.build(bench.folder / "run.sx", artifact, args.target)
    ours = [sys.executable, common.BENCH / "ours.py", "initial", artifact, folder, folder / "initial.npz"]
    common.talk(ours, environment())


def agreement(runs: Sequence[Run], least: float) -> dict[str, Any]:
    """The greatest relative difference of the losses of the first steps from ours. SystemExit where it is too great: a
    benchmark of two different computations is worth nothing."""
    ours, worst = next(r for r in runs if r.who == OURS), 0.0
    for other in runs:
        pairs = zip(other.losses[:COMPARED], ours.losses[:COMPARED], strict=True)
        worst = max(worst, *(abs(a - b) / max(abs(b), least) for a, b in pairs))
        if worst > BOUND:
            found, wanted = other.losses[:COMPARED], ours.losses[:COMPARED]
            raise SystemExit(f"{other.who} computes something else: losses {found}, ours {wanted}")
    return {"steps": COMPARED, "worst": worst, "bound": BOUND, "losses": ours.losses[:COMPARED]}


def joined(found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The results of several calls as one."""
    first = found[0]
    for other in found[1:]:
        if any(other[key] != first[key] for key in ("bench", "machine", "threads")):
            raise SystemExit("the files are of different benchmarks, machines or numbers of threads")
    return {
        **first,
        "sgemm": {n: max(f["sgemm"][n] for f in found) for n in first["sgemm"]},
        "versions": {k: v for f in found for k, v in f["versions"].items()},
        "agreement": max((f["agreement"] for f in found), key=lambda a: a["worst"]),
        "parts": {k: v for f in found for k, v in f["parts"].items()},
        "rows": [row for f in found for row in f["rows"]],
    }


# What it says, in Markdown


def report(bench: Bench, result: dict[str, Any]) -> str:
    sums = summaries(result["rows"])
    peak = max(result["sgemm"].values()) if result["threads"] > 1 else result["sgemm"]["1"]
    sgemm = ", ".join(f"{v:.0f} GF/s on {n} thread{'s' * (n != '1')}" for n, v in result["sgemm"].items())
    a = result["agreement"]
    rounds = len(sums[OURS].medians)
    lines = [
        f"{result['machine']}; {result['threads']} threads; NumPy's best sgemm {sgemm}; "
        f"{', '.join(dict.fromkeys(result['versions'].values()))}. {bench.gflop:.2f} GF a step in matrix products. "
        f"{rounds} alternated round{'s' * (rounds > 1)}. "
        f"The losses of the first {a['steps']} steps agree to {a['worst']:.0e} of their value.",
        "",
        whole(sums, peak, bench.gflop),
        "",
        *bench.goals(sums, sums[OURS].target),
        "",
        by_part(bench, result["parts"], peak),
    ]
    return "\n".join(lines)


def short(ms: float) -> str:
    return f"{ms:.0f}" if ms >= 100 else f"{ms:.1f}" if ms >= 10 else f"{ms:.2f}"


def whole(sums: Mapping[str, Summary], peak: float, gflop: float) -> str:
    own = sums[OURS]
    head = ["who", "target", "ms a step, min", "medians of the rounds", "of sgemm peak", "start to first step", "RSS"]
    rows = []
    for s in sums.values():
        share = f"{100 * gflop / (s.least / 1e3) / peak:.0f} %"
        ratios = ["", ""] if s is own else [f"{own.least / s.least:.2f}", f"{own.median / s.median:.2f}"]
        times = [short(s.least), " ".join(map(short, s.medians))]
        rows.append([s.who, s.target, *times, share, f"{s.start_s:.2f} s", f"{s.rss_mb:.0f} MB", *ratios])
    return table([*head, "ours / theirs, min", "median"], rows)


def by_part(bench: Bench, parts: Mapping[str, Mapping[str, float]], peak: float) -> str:
    """Milliseconds of each part. Ours with its share of the peak; a peer's parts have the names of ours."""
    own = parts[OURS]
    rows = []
    peers = [who for who in parts if who != OURS]
    for name, (phases, gflop) in bench.parts.items():
        ms = sum(own[p] for p in phases)
        share = f"{100 * gflop / (ms / 1e3) / peak:.0f} %" if gflop else ""
        rows.append([name, short(ms), share, *(peer_part(parts[who], name) for who in peers)])
    return table(["part", "ms", "of sgemm peak", *(f"{who}, ms" for who in peers)], rows)


def peer_part(parts: Mapping[str, float], name: str) -> str:
    """A peer may have several of our parts as one, named with " and "."""
    found = next((key for key in parts if name in key.split(" and ")), None)
    if found is None:
        return ""
    return short(parts[found]) if found == name or found.startswith(name) else "in the line above"


def goal(text: str, have: float, bound: float) -> str:
    """A goal and whether it holds."""
    return f"- {text}: {have:.2f}, goal at most {bound:.2f}: {'holds' if have <= bound else 'does NOT hold'}"


def fastest(sums: Mapping[str, Summary], word: str = "") -> Summary:
    """The peer with the least median among those whose name contains ``word``."""
    return min((s for s in sums.values() if s.who != OURS and word in s.who), key=lambda s: s.median)
