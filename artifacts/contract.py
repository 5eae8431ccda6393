"""What must hold between the parts of a manifest, so that the loop can bind every port without asking again."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable

from .canonical import Malformed
from .manifest import Loader, Manifest, Parameter, Phase, Port, Stage, Tensor
from .tensors import DTYPES

INPUTS = ("param", "optimizer", "gradient", "field", "generated", "state", "trip", "ctx", "counter", "seed")
OUTPUTS = ("param", "optimizer", "gradient", "generated", "state", "counter", "metric", "diagnostic")
CTX = ("step", "microbatch", "records", "stage", "stage-step", "stage-records")
MOVED = ("field", "state", "generated", "gradient")  # what is made in one place and read in another
IN_PLACE = ("gradient", "state")  # in any phase: a stop forgets them; parameters move in ``update`` alone
REQUIRED = ("init", "train", "update")
GENERATOR = ("generate.init", "generate.step", "generate.finish")
MAX_RANK, MAX_ELEMENTS, MAX_TRIPS = 8, 2**40, 2**31
NAME = re.compile(r"[A-Za-z0-9_./-]{1,512}")


def need(fact: bool, message: str) -> None:
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
    wanted = [*REQUIRED, *(f"eval.{p.name}" for p in manifest.step.passes)]
    if manifest.step.trips is not None:
        wanted += GENERATOR[:2]
    for name in wanted:
        need(name in names, f"the phase {name} is missing")
    for name in names:
        need(
            name in wanted or (name == GENERATOR[2] and manifest.step.trips is not None),
            f"the phase {name} has no place",
        )
    for phase in manifest.phases:
        _check_phase(manifest, phase)
    train = manifest.phase("train")
    need(
        train is not None and train.outputs[:1] != () and train.outputs[0].key == ("metric", "loss"),
        "the first output of train is not its loss",
    )
    _check_flow(manifest)


def _check_flow(manifest: Manifest) -> None:
    """Every phase takes what was made for it in the type it was made: phases do not look at their arguments."""
    made = {p.name: {port.key: (port.shape, port.dtype) for port in p.outputs} for p in manifest.phases}
    state = made.get("generate.step", {})
    last = {("generated", n): state[key] for n in manifest.step.generated if (key := ("state", n)) in state}
    generated = made.get("generate.finish", last)
    trained = [_batch(manifest.loader(name)) for name in manifest.training_loaders()]
    passes = {f"eval.{p.name}": (p, _batch(manifest.loader(p.loader))) for p in manifest.step.passes}
    given = {
        "generate.init": [*trained, *(batch for p, batch in passes.values() if p.generate)],
        "generate.step": [made.get("generate.init", {}), state],
        "generate.finish": [state],
        "train": [{**batch, **generated, **made["train"]} for batch in trained],
        "update": [made["train"]],
        **{name: [{**batch, **generated} if p.generate else batch] for name, (p, batch) in passes.items()},
    }
    for phase in manifest.phases:
        moved = [port for port in phase.inputs if port.kind in MOVED]
        for source, port in itertools.product(given.get(phase.name, []), moved):
            is_same = source.get(port.key) == (port.shape, port.dtype)
            need(is_same, f"phase {phase.name}: {port.kind} {port.name} is not made so")


def _batch(loader: Loader) -> dict[tuple[str, str], tuple[tuple[int, ...], str]]:
    """The types of a batch's fields, by port."""
    return {("field", f.name): ((loader.batch, *f.shape), f.dtype) for f in loader.fields}


def _check_phase(manifest: Manifest, phase: Phase) -> None:
    at = f"phase {phase.name}"
    need(phase.stack == 1, f"{at}: stack is {phase.stack}; this runner stacks nothing")
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
            _check_scalar(at, port)
    _check_in_place(at, phase)


def _check_scalar(at: str, port: Port) -> None:
    if port.kind == "ctx":
        need(port.name in CTX, f"{at}: ctx has no {port.name[:30]}")
    if port.kind in ("ctx", "trip", "counter"):
        need((port.shape, port.dtype) == ((), "i64"), f"{at}: {port.kind} {port.name} is not an i64 scalar")
    if port.kind == "seed":
        need((port.shape, port.dtype) == ((2,), "u32"), f"{at}: seed is not u32[2]")
    if port.kind == "metric":
        need(port.shape == (), f"{at}: metric {port.name} is not a scalar")


def _check_in_place(at: str, phase: Phase) -> None:
    for output, input in phase.in_place:
        need(0 <= output < len(phase.outputs) and 0 <= input < len(phase.inputs), f"{at}: in_place is out of range")
        a, b = phase.outputs[output], phase.inputs[input]
        need(a == b, f"{at}: in_place joins {a.kind} {a.name} and {b.kind} {b.name}")
        need(a.kind in IN_PLACE or phase.name == "update", f"{at}: {a.kind} {a.name} may not be written in place")
    _unique(f"{at}: in_place", (str(o) for o, _ in phase.in_place))
    _unique(f"{at}: in_place", (str(i) for _, i in phase.in_place))


def _check_targets(manifest: Manifest) -> None:
    need(bool(manifest.targets), "targets is empty")
    if not manifest.files:
        return
    paths = {entry.path for entry in manifest.files}
    members = [t.library for t in manifest.targets] + [manifest.runtime.library]
    members += [member for loader in manifest.loaders for member in loader.embedded]
    for member in members:
        need(member in paths, f"{member[:80]} is named but is not among the files")
