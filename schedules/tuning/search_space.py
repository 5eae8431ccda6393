"""Where tuning looks: MetaSchedule's spaces, without what would change the order of a sum.

Left out of TVM's own lists: AddRFactor and CrossThreadReduction, which share a sum out, and all that is tensorised,
whose intrinsics take most of a minute to load. The context is made by its constructor for the same reason.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from math import prod
from typing import Any

import tvm
from tvm import s_tir
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.meta_schedule import _ffi_api
from tvm.s_tir.meta_schedule import mutator as mu
from tvm.s_tir.meta_schedule import postproc as pp
from tvm.s_tir.meta_schedule import schedule_rule as sr
from tvm.s_tir.meta_schedule.logging import get_logging_func

from ..tir.context import MIN_PARALLEL_WORK
from ..tir.rewrite import collect
from .records import prepared

ROUND = 4  # candidates that are made at once: the next ones are bred from what these measured
CORES = 2  # of a nominal machine: spaces are cut for so many tasks, whatever machine tunes
JOBS = 16  # tasks a core, at most
SEEDS = 2**31 - 2  # that TVM's generator of random numbers tells apart
LANES = 64  # elements of a vector, at most, and of the innermost tile
QUIET = logging.getLogger(f"{__name__}.quiet")
QUIET.setLevel(logging.CRITICAL)


def _cpu(jobs: int) -> Any:
    """``jobs`` of a core at most; -1 for none that are shared out."""
    rules = [
        sr.InlineConstantScalars(),
        sr.AutoInline(False, True, True, True, True, True, ["tirx.exp"]),
        sr.MultiLevelTiling("SSRSRS", None, LANES, None, None, sr.ReuseType("may", [1, 2], "global")),
        sr.ParallelizeVectorizeUnroll(jobs, LANES, [0, 16, 64, 512], True),
        sr.RandomComputeLocation(),
    ]
    after = [pp.DisallowDynamicLoop(), pp.RewriteParallelVectorizeUnroll(), pp.RewriteReductionBlock()]
    change = {mu.MutateTileSize(): 0.92, mu.MutateComputeLocation(): 0.05, mu.MutateUnroll(): 0.03}
    return rules, after, change | ({mu.MutateParallel(jobs): 0.02} if jobs > 0 else {})


def _work(func: Any) -> int:
    """Elements that its largest block goes through."""
    blocks = collect(func.body, s_tir.SBlock)
    return max((prod(int(axis.dom.extent) for axis in block.iter_vars) for block in blocks), default=0)


def _cuda() -> Any:
    rules = [
        sr.MultiLevelTiling(
            "SSSRRSRS",
            ["blockIdx.x", "vthread.x", "threadIdx.x"],
            LANES,
            [1, 2, 4],
            sr.ReuseType("must", [4], "shared"),
            sr.ReuseType("must", [3], "local"),
        ),
        sr.InlineConstantScalars(),
        sr.AutoInline(True, True, True, False, False, False, []),
        sr.ParallelizeVectorizeUnroll(-1, -1, [0, 16, 64, 256], True),
        sr.AutoBind(256, [32, 64, 128, 256, 512, 1024]),
    ]
    after = [
        pp.DisallowDynamicLoop(),
        pp.RewriteCooperativeFetch(),
        pp.RewriteUnboundBlock(256),
        pp.RewriteParallelVectorizeUnroll(),
        pp.RewriteReductionBlock(),
        pp.VerifyGPUCode(),
    ]
    change = {mu.MutateTileSize(): 0.9, mu.MutateUnroll(): 0.08, mu.MutateThreadBinding(): 0.02}
    return rules, after, change


class Search:
    """Candidates for one program in rounds: an evolutionary search with a seed of its own and one thread, so that they
    follow from the program, the seed (any number from 0 on) and the times that were told."""

    def __init__(self, func: Any, target: Any, trials: int, seed: int) -> None:
        seed = 1 + (seed - 1) % SEEDS
        aim = dict(target.tvm) if target.gpu is not None else {**target.tvm, "num-cores": CORES}
        self._target = tvm.target.Target(aim)
        self._module = tvm.IRModule({"main": prepared(func, target)})
        rules, after, change = (
            _cuda() if target.gpu is not None else _cpu(JOBS if _work(func) >= MIN_PARALLEL_WORK else -1)
        )
        space = ms.space_generator.PostOrderApply(None, rules, after, change)
        search = ms.search_strategy.EvolutionarySearch(
            population_size=32,
            init_measured_ratio=0.5,
            init_min_unmeasured=1,
            max_fail_count=100,
            genetic_num_iters=1,
            eps_greedy=0.25,
        )
        log = get_logging_func(QUIET)
        with self._target:
            self._context = _ffi_api.TuneContext(self._module, self._target, space, search, "main", 1, seed, log)
            _ffi_api.TuneContextInitialize(self._context)
            spaces = self._context.generate_design_space()
            self._seen = ms.database.MemoryDatabase()
            self._of = self._seen.commit_workload(self._module)
            self._context.pre_tuning(trials, ROUND, spaces, self._seen, ms.cost_model.RandomModel(seed=seed))

    def next(self) -> Sequence[Any]:
        """The candidates of the next round, whose ``sch`` is a schedule; none when the search is over."""
        with self._target:
            return list(self._context.generate_measure_candidates() or ())

    def tell(self, candidates: Sequence[Any], seconds: Sequence[float | None]) -> None:
        """What the last round's candidates took; None for one that is of no use."""
        for one, took in zip(candidates, seconds, strict=True):
            if took is not None:
                record = ms.database.TuningRecord(one.sch.trace, self._of, [took], self._target, one.args_info)
                self._seen.commit_tuning_record(record)
        told = [ms.runner.RunnerResult([1e10 if s is None else s], None) for s in seconds]
        self._context.notify_runner_results(candidates, told)
