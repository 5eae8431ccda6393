"""What must hold between the parts of a manifest, so that the loop can bind every port without asking again."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Mapping

from .canonical import Malformed
from .manifest import MOVING, Loader, Manifest, Parameter, Phase, Port, Stage, Target, Tensor, stacked_name
from .structure import plain
from .tensors import DTYPES

INPUTS = ("param", "optimizer", "gradient", "field", "generated", "state", "trip", "ctx", "counter", "seed")
OUTPUTS = ("param", "optimizer", "gradient", "generated", "state", "counter", "metric", "diagnostic")
CTX = ("step", "microbatch", "records", "stage", "stage-step", "stage-records")
MOVED = ("field", "state", "generated", "gradient")  # what is made in one place and read in another
IN_PLACE = ("gradient", "state")  # in any phase: a stop forgets them; parameters move in ``update`` alone
FINISH = "generate.finish"
GENERATOR = ("generate.init", "generate.step", FINISH)
MAX_RANK, MAX_ELEMENTS, MAX_TRIPS = 8, 2**40, 2**31
Types = dict[tuple[str, str], tuple[tuple[int, ...], str]]  # (shape, dtype) by port
ARCH = re.compile(r"(sm|compute)_[1-9][0-9]{1,2}")  # the last digit is the minor number
NAME = re.compile(r"[A-Za-z0-9_./-]{1,512}")


def need(fact: bool, message: str) -> None:
    """Malformed, with ``message``, unless ``fact``."""
    if not fact:
        raise Malformed(message)


def check(manifest: Manifest) -> None:
    """Malformed, with the key in question, unless the manifest is one that a build writes."""
    _check_run(manifest)
    for tensor in (*manifest.parameters, *manifest.optimizer):
        _check_tensor(tensor)
    _unique("parameters", (p.name for p in manifest.parameters))
    _unique("optimizer", (o.name for o in manifest.optimizer))
    for loader in manifest.loaders:
        _check_loader(loader)
    _unique("loaders", (entry.name for entry in manifest.loaders))
    _check_step(manifest)
    _check_phases(manifest)
    _check_memory(manifest)
    _check_targets(manifest)


def _unique(what: str, names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        need(name not in seen, f"{what} names {name} twice")
        seen.add(name)


def _check_run(manifest: Manifest) -> None:
    run = manifest.run
    need(run.seed >= 0, "run.seed is negative")
    for key in ("steps", "microbatches", "log_every", "checkpoint_every"):
        value = getattr(run, key)
        need(value is None or value >= 1, f"run.{key} is {value}; it should be 1 or more")
    need(re.fullmatch(r"[A-Za-z0-9_.-]{1,100}", run.name) is not None, "run.name is not a plain name")


def _check_tensor(tensor: Tensor | Parameter | Port) -> None:
    need(NAME.fullmatch(tensor.name) is not None, f"the name {tensor.name[:60]!r} is not allowed")
    _check_type(tensor.name, tensor.shape, tensor.dtype)


def _check_type(name: str, shape: tuple[int, ...], dtype: str) -> None:
    need(dtype in DTYPES, f"{name} has the unknown dtype {dtype[:30]!r}")
    need(
        len(shape) <= MAX_RANK and all(n >= 1 for n in shape) and math.prod(shape) < MAX_ELEMENTS,
        f"{name} has a shape that no tensor may have",
    )


def _check_loader(loader: Loader) -> None:
    at = f"loader {loader.name}"
    need(loader.kind in ("files", "indices"), f"{at}: its kind is not files or indices")
    need(loader.batch >= 1, f"{at}: batch is {loader.batch}")
    need(loader.epochs is None or loader.epochs >= 1, f"{at}: epochs is {loader.epochs}")
    need(bool(loader.fields), f"{at}: it has no fields")
    _unique(at, (f.name for f in loader.fields))
    for entry in loader.fields:
        _check_type(f"{at}: {entry.name}", entry.shape, entry.dtype)
    if loader.kind == "indices":
        need(loader.count is not None and loader.count >= 1, f"{at}: count is not 1 or more")
        need(
            len(loader.fields) == 1
            and loader.fields[0].shape == ()
            and loader.fields[0].dtype in ("i32", "i64", "u32"),
            f"{at}: indices have one scalar integer field",
        )
    else:
        need(bool(loader.sources), f"{at}: it has no sources")


def _check_step(manifest: Manifest) -> None:
    step, loaders = manifest.step, {entry.name for entry in manifest.loaders}
    need(step.trips is None or 1 <= step.trips < MAX_TRIPS, f"step.trips is {step.trips}")
    need(bool(step.stages), "step.stages is empty; a run without a curriculum has one stage")
    _unique("step.passes", (p.name for p in step.passes))
    for one in step.passes:
        need(one.loader in loaders, f"pass {one.name}: there is no loader {one.loader}")
        need(
            one.every >= 1 and (one.batches is None or one.batches >= 1),
            f"pass {one.name}: every or batches is below 1",
        )
        need(not one.generate or step.trips is not None, f"pass {one.name}: there is no generator")
    for stage in step.stages:
        need(stage.loader in loaders, f"stage {stage.name}: there is no loader {stage.loader}")
        _check_stage(stage)


def _check_stage(stage: Stage) -> None:
    need(stage.steps is None or stage.records is None, f"stage {stage.name}: steps and records are both given")
    need(all(n is None or n >= 1 for n in (stage.steps, stage.records)), f"stage {stage.name}: a limit is below 1")


def _check_phases(manifest: Manifest) -> None:
    names = [phase.name for phase in manifest.phases]
    _unique("phases", names)
    places = _places(manifest)
    for name in (n for n in places if not n.startswith(FINISH)):
        need(name in names, f"the phase {name} is missing")
    finish = [name in names for name in places if name.startswith(FINISH)]
    need(all(finish) or not any(finish), f"the phase {FINISH} is missing for some microbatches")
    for phase in manifest.phases:
        need(phase.name in places, f"the phase {phase.name} has no place")
        need(phase.stack == places[phase.name], f"phase {phase.name}: stack is {phase.stack}")
        _check_phase(manifest, phase)
        if phase.role == "train":
            need(
                phase.outputs[:1] != () and phase.outputs[0].key == ("metric", "loss"),
                "the first output of train is not its loss",
            )
    _check_flow(manifest)


def _places(manifest: Manifest) -> dict[str, int]:
    """Every phase that the loop calls, by name, and the microbatches of a call; ``generate.finish`` may be absent."""
    degree, microbatches = manifest.degree, manifest.run.microbatches
    need(1 <= degree <= microbatches, f"phases are stacked by {degree}, and a step has {microbatches} microbatches")
    trained = [degree] + [1] * (microbatches % degree > 0)
    written = {*trained, *([1] if any(p.generate for p in manifest.step.passes) else [])}
    places = dict.fromkeys(["init", "update", *(f"eval.{p.name}" for p in manifest.step.passes)], 1)
    places |= {stacked_name("train", stack): stack for stack in trained}
    if manifest.step.trips is not None:
        places |= {stacked_name(role, stack): stack for role in GENERATOR for stack in written}
    return places


def _check_flow(manifest: Manifest) -> None:
    """Every phase takes what was made for it in the type it was made: phases do not look at their arguments."""
    made = {p.name: {port.key: (port.shape, port.dtype) for port in p.outputs} for p in manifest.phases}
    for phase in manifest.phases:
        moved = [port for port in phase.inputs if port.kind in MOVED]
        for source, port in itertools.product(_sources(manifest, made, phase), moved):
            is_same = source.get(port.key) == (port.shape, port.dtype)
            need(is_same, f"phase {phase.name}: {port.kind} {port.name} is not made so")


def _sources(manifest: Manifest, made: Mapping[str, Types], phase: Phase) -> list[Types]:
    """What each call of ``phase`` may find: the types of what is made for it, by port."""
    of = lambda role: made.get(stacked_name(role, phase.stack), {})  # noqa: E731
    last = {("generated", n): of("generate.step").get(("state", n)) for n in manifest.step.generated}
    generated = of(FINISH) or {key: type for key, type in last.items() if type is not None}
    trained = [_batch(manifest.loader(name), phase.stack) for name in manifest.training_loaders()]
    passes = {f"eval.{p.name}": (p, _batch(manifest.loader(p.loader))) for p in manifest.step.passes}
    written = [batch for p, batch in passes.values() if p.generate and phase.stack == 1]
    sums = [made[p.name] for p in manifest.phases if p.role == "train"]
    return {
        "generate.init": [*trained, *written],
        "generate.step": [of("generate.init"), of("generate.step")],
        "generate.finish": [of("generate.step")],
        "train": [{**batch, **generated, **sum} for batch, sum in itertools.product(trained, sums)],
        "update": sums,
        **{name: [{**batch, **generated} if p.generate else batch] for name, (p, batch) in passes.items()},
    }.get(phase.role, [])


def _batch(loader: Loader, stack: int = 1) -> Types:
    """The types of a batch's fields, by port."""
    front = () if stack == 1 else (stack,)
    return {("field", f.name): ((*front, loader.batch, *f.shape), f.dtype) for f in loader.fields}


def _check_phase(manifest: Manifest, phase: Phase) -> None:
    at = f"phase {phase.name}"
    known = {("param", p.name): (p.shape, p.dtype) for p in manifest.parameters}
    known |= {("optimizer", o.name): (o.shape, o.dtype) for o in manifest.optimizer}
    for ports, kinds in ((phase.inputs, INPUTS), (phase.outputs, OUTPUTS)):
        _unique(at, (f"{p.kind} {p.name}" for p in ports))
        for port in ports:
            need(port.kind in kinds, f"{at}: a port's kind is {port.kind[:30]!r}")
            _check_type(f"{at}: {port.kind} {port.name}", port.shape, port.dtype)
            if port.kind in ("param", "optimizer"):
                need(
                    known.get(port.key) == (port.shape, port.dtype), f"{at}: {port.kind} {port.name} is not declared so"
                )
            _check_scalar(at, port, phase.stack)
    _check_in_place(at, phase)


def _check_scalar(at: str, port: Port, stack: int) -> None:
    """``stack``: of that many microbatches in one call each has its own metrics, and ctx where it differs."""
    one = () if stack == 1 else (stack,)
    if port.kind == "ctx":
        need(port.name in CTX, f"{at}: ctx has no {port.name[:30]}")
        shape = one if port.name in MOVING else ()
        need((port.shape, port.dtype) == (shape, "i64"), f"{at}: ctx {port.name} is not i64{list(shape)}")
    if port.kind in ("trip", "counter"):
        need((port.shape, port.dtype) == ((), "i64"), f"{at}: {port.kind} {port.name} is not an i64 scalar")
    if port.kind == "seed":
        need((port.shape, port.dtype) == ((2,), "u32"), f"{at}: seed is not u32[2]")
    if port.kind == "metric":
        need(port.shape == one, f"{at}: metric {port.name} is not {'a scalar' if stack == 1 else list(one)}")


def _check_in_place(at: str, phase: Phase) -> None:
    for output, input in phase.in_place:
        need(0 <= output < len(phase.outputs) and 0 <= input < len(phase.inputs), f"{at}: in_place is out of range")
        a, b = phase.outputs[output], phase.inputs[input]
        need(a == b, f"{at}: in_place joins {a.kind} {a.name} and {b.kind} {b.name}")
        need(a.kind in IN_PLACE or phase.name == "update", f"{at}: {a.kind} {a.name} may not be written in place")
    _unique(f"{at}: in_place", (str(o) for o, _ in phase.in_place))
    _unique(f"{at}: in_place", (str(i) for _, i in phase.in_place))


def _check_memory(manifest: Manifest) -> None:
    sizes = {f"memory.{key}": n for key, n in plain(manifest.memory).items()}
    sizes |= {f"phase {phase.name}: memory_bytes": phase.memory_bytes for phase in manifest.phases}
    for key, n in sizes.items():
        need(n >= 0, f"{key} is negative")


def _check_targets(manifest: Manifest) -> None:
    need(bool(manifest.targets), "targets is empty")
    _unique("targets", (t.name for t in manifest.targets))
    for target in manifest.targets:
        _check_target(target, manifest.runtime.cuda)
    if not manifest.files:
        return
    paths = {entry.path for entry in manifest.files}
    members = [t.library for t in manifest.targets] + [manifest.runtime.library]
    members += [manifest.runtime.cuda] if manifest.runtime.cuda else []
    members += [member for loader in manifest.loaders for member in loader.embedded]
    for member in members:
        need(member in paths, f"{member[:80]} is named but is not among the files")


def _check_target(target: Target, cuda: str | None) -> None:
    at = f"target {target.name[:60]!r}"
    need(target.device in ("cpu", "cuda"), f"{at}: its device is {target.device[:30]!r}")
    on_gpu = target.device == "cuda"
    need(bool(target.archs) == on_gpu, f"{at}: archs do not fit its device")
    need(on_gpu or not target.graphs, f"{at}: a CPU has no graphs")
    need(all(ARCH.fullmatch(arch) for arch in target.archs), f"{at}: an arch is not sm_XY or compute_XY")
    need(cuda is not None or not on_gpu, f"{at}: runtime.cuda is missing")
