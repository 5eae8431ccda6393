"""Checks of a whole manifest, so that the loop can bind every port without further checks.

Every number has its bound here; ``data_flow`` checks the phases.
"""

from __future__ import annotations

import math
import re

from ..base.json_classes import plain
from ..base.safetensors_io import INTEGERS, name_allowed
from .conditions import MAX_ELEMENTS, MAX_NAME_LENGTH, check_type, need, need_count, need_name, need_unique
from .data_flow import check_phases
from .manifest import Loader, Manifest, Stage, Target

MAX_STEPS = 2**53  # the steps of a curriculum's stages are summed
MAX_RECORDS = 2**62  # of a loader, or taken by a run: both are counted in i64
MAX_BYTES = 2**60
PRECISIONS = ("f32", "bf16")
ARCH = re.compile(r"(sm|compute)_[1-9][0-9]{1,2}")  # the last digit is the minor number
DIGEST = re.compile(r"[0-9a-f]{64}")


def check(manifest: Manifest) -> None:
    """Malformed, with the key in question, unless the manifest is one that a build writes."""
    _check_run(manifest)
    for tensor in (*manifest.parameters, *manifest.optimizer):
        need(
            len(tensor.name) <= MAX_NAME_LENGTH and name_allowed(tensor.name),
            f"the name {tensor.name[:60]!r} is not allowed",
        )
        check_type(tensor.name, tensor.shape, tensor.dtype)
    need_unique("parameters", (p.name for p in manifest.parameters))
    need_unique("optimizer", (o.name for o in manifest.optimizer))
    for loader in manifest.loaders:
        _check_loader(loader)
    need_unique("loaders", (entry.name for entry in manifest.loaders))
    _check_step(manifest)
    check_phases(manifest)
    _check_memory(manifest)
    _check_targets(manifest)


def _check_run(manifest: Manifest) -> None:
    run = manifest.run
    need(run.seed >= 0, "run.seed is negative")
    need_count("run.steps", run.steps, MAX_STEPS)
    for key in ("microbatches", "log_every", "checkpoint_every"):
        need_count(f"run.{key}", getattr(run, key))
    need(re.fullmatch(r"[A-Za-z0-9_.-]{1,100}", run.name) is not None, "run.name is not a plain name")
    need(run.precision in PRECISIONS, f"run.precision is {run.precision[:30]!r}")
    for key, digest in plain(run.identity).items():
        need(DIGEST.fullmatch(digest) is not None, f"run.identity.{key} is not a sha256")


def _check_loader(loader: Loader) -> None:
    at = f"loader {loader.name[:60]}"
    need_name("a loader", loader.name)
    need(loader.kind in ("files", "indices"), f"{at}: its kind is not files or indices")
    need_count(f"{at}: batch", loader.batch)
    need_count(f"{at}: epochs", loader.epochs)
    need_count(f"{at}: count", loader.count, MAX_RECORDS)
    need(bool(loader.fields), f"{at}: it has no fields")
    need_unique(at, (f.name for f in loader.fields))
    for entry in loader.fields:
        need_name(at, entry.name)
        check_type(f"{at}: {entry.name}", entry.shape, entry.dtype)
        need(loader.batch * math.prod(entry.shape) < MAX_ELEMENTS, f"{at}: a batch of {entry.name} is too large")
        _check_range(f"{at}: {entry.name}", entry.dtype, entry.low, entry.high)
    if loader.kind == "indices":
        _check_indices(at, loader)
    else:
        need(bool(loader.sources), f"{at}: it has no sources")


def _check_range(at: str, dtype: str, low: int | None, high: int | None) -> None:
    """A range that integers of the dtype can be compared with."""
    if low is None and high is None:
        return
    need(dtype in INTEGERS, f"{at} is {dtype}, which has no range")
    smallest, largest = INTEGERS[dtype]
    need(
        (low is None or smallest <= low <= largest) and (high is None or smallest < high <= largest + 1),
        f"{at}: its range is not one of {dtype}",
    )


def _check_indices(at: str, loader: Loader) -> None:
    field = loader.fields[0]
    need(
        len(loader.fields) == 1 and field.shape == () and field.dtype in ("i32", "i64", "u32"),
        f"{at}: indices have one scalar integer field",
    )
    largest = INTEGERS[field.dtype][1]
    need(loader.count is not None and loader.count - 1 <= largest, f"{at}: count does not fit its field")


def _check_step(manifest: Manifest) -> None:
    step, loaders = manifest.step, {entry.name for entry in manifest.loaders}
    need_count("step.trips", step.trips)
    need(bool(step.stages), "step.stages is empty; a run without a curriculum has one stage")
    need_unique("step.passes", (p.name for p in step.passes))
    for each in step.passes:
        need_name("a pass", each.name)
        need(each.loader in loaders, f"pass {each.name}: there is no loader {each.loader[:60]!r}")
        need_count(f"pass {each.name}: every", each.every)
        need_count(f"pass {each.name}: batches", each.batches)
        need(not each.generate or step.trips is not None, f"pass {each.name}: there is no generator")
    for stage in step.stages:
        need_name("a stage", stage.name)
        need(stage.loader in loaders, f"stage {stage.name}: there is no loader {stage.loader[:60]!r}")
        _check_stage(stage)
    need_unique("step.diagnostics", step.diagnostics)
    for name in step.diagnostics:
        need_name("step.diagnostics", name)


def _check_stage(stage: Stage) -> None:
    at = f"stage {stage.name}"
    need(stage.steps is None or stage.records is None, f"{at}: steps and records are both given")
    need_count(f"{at}: steps", stage.steps)
    need_count(f"{at}: records", stage.records)


def _check_memory(manifest: Manifest) -> None:
    sizes = {f"memory.{key}": n for key, n in plain(manifest.memory).items()}
    sizes |= {f"phase {phase.name}: memory_bytes": phase.memory_bytes for phase in manifest.phases}
    for key, n in sizes.items():
        need_count(key, n, MAX_BYTES, 0)


def _check_targets(manifest: Manifest) -> None:
    need(bool(manifest.targets), "targets is empty")
    need_unique("targets", (t.name for t in manifest.targets))
    for target in manifest.targets:
        _check_target(target, manifest.runtime.cuda)
    code = [t.library for t in manifest.targets] + [manifest.runtime.library]
    code += [manifest.runtime.cuda] if manifest.runtime.cuda else []
    if not manifest.files:
        return
    paths = {entry.path for entry in manifest.files}
    for member in (*code, *(member for loader in manifest.loaders for member in loader.embedded)):
        need(member in paths, f"{member[:80]} is named but is not among the files")


def _check_target(target: Target, cuda: str | None) -> None:
    at = f"target {target.name[:60]!r}"
    need(target.device in ("cpu", "cuda"), f"{at}: its device is {target.device[:30]!r}")
    on_gpu = target.device == "cuda"
    need(bool(target.archs) == on_gpu, f"{at}: archs do not fit its device")
    need(on_gpu or not target.graphs, f"{at}: a CPU has no graphs")
    need(all(ARCH.fullmatch(arch) for arch in target.archs), f"{at}: an arch is not sm_XY or compute_XY")
    need(cuda is not None or not on_gpu, f"{at}: runtime.cuda is missing")
