"""MetaSchedule's search spaces and evolutionary search, without what would change the order of a sum.

Left out of TVM's own lists: AddRFactor and CrossThreadReduction, which split a sum, and tensorization, whose intrinsics
take most of a minute to load (the context is made by its constructor to avoid the same load). A search is a function of
program, seed and measured times.
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
from .records import with_fma

# Candidates a generation; the next is bred from their times. Chosen: small, since few trials are made. Larger
# generations learn less from as many trials.
ROUND_SIZE = 4
# Cores of the machine that spaces are made for, whatever machine tunes: a record must not depend on it.
NOMINAL_CORES = 2
MAX_TASKS_PER_CORE = 16  # parallel tasks; MetaSchedule's own default
SEED_COUNT = 2**31 - 2  # distinct seeds of TVM's linear congruential generator
MAX_VECTOR_LANES = 64  # elements of a vector and of the innermost tile; MetaSchedule's own default
SILENT_LOG = logging.getLogger(f"{__name__}.quiet")
SILENT_LOG.setLevel(logging.CRITICAL)


def _cpu(max_tasks: int) -> Any:
    """Rules, postprocessors and mutators of a CPU; ``max_tasks`` parallel tasks a core, -1 for no parallel loops."""
    rules = [
        sr.InlineConstantScalars(),
        sr.AutoInline(False, True, True, True, True, True, ["tirx.exp"]),
        sr.MultiLevelTiling("SSRSRS", None, MAX_VECTOR_LANES, None, None, sr.ReuseType("may", [1, 2], "global")),
        sr.ParallelizeVectorizeUnroll(max_tasks, MAX_VECTOR_LANES, [0, 16, 64, 512], True),
        sr.RandomComputeLocation(),
    ]
    postprocs = [pp.DisallowDynamicLoop(), pp.RewriteParallelVectorizeUnroll(), pp.RewriteReductionBlock()]
    mutators = {mu.MutateTileSize(): 0.92, mu.MutateComputeLocation(): 0.05, mu.MutateUnroll(): 0.03}
    return rules, postprocs, mutators | ({mu.MutateParallel(max_tasks): 0.02} if max_tasks > 0 else {})


def _largest_block_points(func: Any) -> int:
    """Points of the iteration domain of the largest block."""
    blocks = collect(func.body, s_tir.SBlock)
    return max((prod(int(axis.dom.extent) for axis in block.iter_vars) for block in blocks), default=0)


def _cuda() -> Any:
    rules = [
        sr.MultiLevelTiling(
            "SSSRRSRS",
            ["blockIdx.x", "vthread.x", "threadIdx.x"],
            MAX_VECTOR_LANES,
            [1, 2, 4],
            sr.ReuseType("must", [4], "shared"),
            sr.ReuseType("must", [3], "local"),
        ),
        sr.InlineConstantScalars(),
        sr.AutoInline(True, True, True, False, False, False, []),
        sr.ParallelizeVectorizeUnroll(-1, -1, [0, 16, 64, 256], True),
        sr.AutoBind(256, [32, 64, 128, 256, 512, 1024]),
    ]
    postprocs = [
        pp.DisallowDynamicLoop(),
        pp.RewriteCooperativeFetch(),
        pp.RewriteUnboundBlock(256),
        pp.RewriteParallelVectorizeUnroll(),
        pp.RewriteReductionBlock(),
        pp.VerifyGPUCode(),
    ]
    mutators = {mu.MutateTileSize(): 0.9, mu.MutateUnroll(): 0.08, mu.MutateThreadBinding(): 0.02}
    return rules, postprocs, mutators


class Search:
    """Candidates for a program in rounds: an evolutionary search on a thread, so that candidates are a function of the
    program, the seed (any number from 0 on) and the times passed to ``tell``."""

    def __init__(self, func: Any, target: Any, trials: int, seed: int) -> None:
        # Any seed to a state of the generator: 0 is no state, and -1 would ask TVM for a random seed.
        seed = 1 + (seed - 1) % SEED_COUNT
        target_config = dict(target.tvm) if target.gpu is not None else {**target.tvm, "num-cores": NOMINAL_CORES}
        self._target = tvm.target.Target(target_config)
        self._module = tvm.IRModule({"main": with_fma(func, target)})
        rules, postprocs, mutators = (
            _cuda()
            if target.gpu is not None
            else _cpu(MAX_TASKS_PER_CORE if _largest_block_points(func) >= MIN_PARALLEL_WORK else -1)
        )
        space = ms.space_generator.PostOrderApply(None, rules, postprocs, mutators)
        # Chosen, not measured. Population and generations are far smaller than MetaSchedule's defaults (512 and 4),
        # which are meant for thousands of trials: with tens of them, most of that breeding would be thrown away.
        search = ms.search_strategy.EvolutionarySearch(
            population_size=32,
            init_measured_ratio=0.5,
            init_min_unmeasured=1,
            max_fail_count=100,
            genetic_num_iters=1,
            eps_greedy=0.25,
        )
        log = get_logging_func(SILENT_LOG)
        with self._target:
            self._context = _ffi_api.TuneContext(self._module, self._target, space, search, "main", 1, seed, log)
            _ffi_api.TuneContextInitialize(self._context)
            spaces = self._context.generate_design_space()
            self._database = ms.database.MemoryDatabase()
            self._workload = self._database.commit_workload(self._module)
            self._context.pre_tuning(trials, ROUND_SIZE, spaces, self._database, ms.cost_model.RandomModel(seed=seed))

    def next(self) -> Sequence[Any]:
        """The candidates of the next round, whose ``sch`` is a schedule; none when the search is over."""
        with self._target:
            return list(self._context.generate_measure_candidates() or ())

    def tell(self, candidates: Sequence[Any], seconds: Sequence[float | None]) -> None:
        """What the last round's candidates took; None for a candidate that is of no use."""
        for candidate, elapsed in zip(candidates, seconds, strict=True):
            if elapsed is not None:
                record = ms.database.TuningRecord(
                    candidate.sch.trace, self._workload, [elapsed], self._target, candidate.args_info
                )
                self._database.commit_tuning_record(record)
        # A useless candidate gets a time, since MetaSchedule waits for a result of each: so long that nothing is bred
        # from it.
        results = [ms.runner.RunnerResult([1e10 if s is None else s], None) for s in seconds]
        self._context.notify_runner_results(candidates, results)
