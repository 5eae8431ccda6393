"""Checks the data flow between phases: each input is provided, and each output that the loop reads exists, with its
type.

A phase does not check its arguments, and the loop reads outputs by name: both rely on the checks here.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping

from ..base.canonical_json import Malformed
from .conditions import check_type, need, need_name, need_unique
from .manifest import MOVING, UNDRAWN, Loader, Manifest, Phase, Port, stacked_name

CTX = ("step", "microbatch", "records", "stage", "stage-step", "stage-records")
UNNAMED_KINDS = ("trip", "seed")  # kinds with a single port, which has no name
PASSED_ON = ("field", "state", "generated", "gradient")  # kinds that one phase outputs and another takes
DONATABLE_KINDS = (
    "gradient",
    "state",
)  # any phase may write these in place: a stop discards them. Parameters are written in ``update`` only
FINISH = "generate.finish"
GENERATOR = ("generate.init", "generate.step", FINISH)
_NUMBERS = ("ctx", "counter", "seed")
# role -> the kinds of its inputs, which the loop provides, and of its outputs, which the loop reads.
KINDS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "init": (("seed",), ("param", "optimizer", "metric")),
    "generate.init": (("param", "field", *_NUMBERS), ("state",)),
    "generate.step": (("param", "state", "trip", *_NUMBERS), ("state",)),
    FINISH: (("param", "state", *_NUMBERS), ("generated",)),
    "train": (
        ("param", "field", "generated", "gradient", *_NUMBERS),
        ("metric", "counter", "gradient", "diagnostic"),
    ),
    "update": (("param", "optimizer", "gradient", *_NUMBERS), ("param", "optimizer", "metric")),
    "eval": (("param", "field", "generated", *_NUMBERS), ("metric", "diagnostic")),
}
REPORTED = {"train": "loss", "eval": "loss", "update": "grad_norm"}  # role -> the metric that the loop reads by name
Types = dict[tuple[str, str], tuple[tuple[int, ...], str]]  # (shape, dtype) by port


def check_phases(manifest: Manifest) -> None:
    """Malformed, with the phase and port in question, unless the loop can run on the manifest's phases."""
    names = [phase.name for phase in manifest.phases]
    need_unique("phases", names)
    expected = _expected_phases(manifest)
    for name in (n for n in expected if not n.startswith(FINISH)):
        need(name in names, f"the phase {name} is missing")
    finish = [name in names for name in expected if name.startswith(FINISH)]
    need(all(finish) or not any(finish), f"the phase {FINISH} is missing for some microbatches")
    for phase in manifest.phases:
        need(phase.name in expected, f"the phase {phase.name[:60]} has no place")
        need(phase.stack == expected[phase.name], f"phase {phase.name}: stack is {phase.stack}")
        _check_phase(manifest, phase)
        _check_reports(phase)
    _check_init(manifest)
    _check_flow(manifest)
    _check_sums(manifest)
    _check_generated(manifest)


def _expected_phases(manifest: Manifest) -> dict[str, int]:
    """Name of every phase that the loop calls -> microbatches of a call; ``generate.finish`` may be absent."""
    degree, microbatches = manifest.degree, manifest.run.microbatches
    need(1 <= degree <= microbatches, f"phases are stacked by {degree}, and a step has {microbatches} microbatches")
    train_degrees = [degree] + [1] * (microbatches % degree > 0)
    generating = {*train_degrees, *([1] if any(p.generate for p in manifest.step.passes) else [])}
    expected = dict.fromkeys(["init", "update", *(f"eval.{p.name}" for p in manifest.step.passes)], 1)
    expected |= {stacked_name("train", stack): stack for stack in train_degrees}
    if manifest.step.trips is not None:
        expected |= {stacked_name(role, stack): stack for role in GENERATOR for stack in generating}
    return expected


def _check_reports(phase: Phase) -> None:
    """The loop reads a loss of each microbatch and batch, and the gradient's norm of each step."""
    wanted = REPORTED.get(_role(phase))
    metrics = _names(phase.outputs, "metric")
    need(wanted is None or wanted in metrics, f"phase {phase.name} has no metric {wanted}")
    if phase.role == "train":
        need(phase.outputs[0].key == ("metric", "loss"), "the first output of train is not its loss")


def _check_init(manifest: Manifest) -> None:
    """``init`` outputs every tensor of a checkpoint, and nothing else but counts of draws."""
    outputs = {port.key for phase in manifest.phases if phase.name == "init" for port in phase.outputs}
    outputs = {(kind, name) for kind, name in outputs if kind != "metric" or not name.startswith(UNDRAWN)}
    declared = {("param", p.name) for p in manifest.parameters} | {("optimizer", o.name) for o in manifest.optimizer}
    for kind, name in sorted(outputs ^ declared):
        raise Malformed(f"phase init: {kind} {name} is {'not outputs' if (kind, name) in declared else 'not declared'}")


def _check_sums(manifest: Manifest) -> None:
    """All phases of ``train``, whatever their stack, sum the same metrics, counters and gradients; every counter that a
    phase reads is one that they count."""
    trained = [phase for phase in manifest.phases if phase.role == "train"]
    for kind in ("metric", "counter", "gradient"):
        same_names = len({frozenset(_names(phase.outputs, kind)) for phase in trained}) == 1
        need(same_names, f"the phases of train do not have the same outputs of the kind {kind}")
    same_names = len({frozenset(_names(phase.inputs, "gradient")) for phase in trained}) == 1
    need(same_names, "the phases of train do not take the same gradients")
    counted = _names(trained[0].outputs, "counter")
    for phase in manifest.phases:
        for name in sorted(_names(phase.inputs, "counter") - counted):
            raise Malformed(f"phase {phase.name}: counter {name} is counted nowhere")


def _check_generated(manifest: Manifest) -> None:
    """``step.generated`` are the outputs of ``generate.finish`` or, without it, part of the state after a trip."""
    generated = set(manifest.step.generated)
    need_unique("step.generated", manifest.step.generated)
    need(manifest.step.trips is not None or not generated, "step.generated names what no generator makes")
    finish = [phase for phase in manifest.phases if phase.role == FINISH]
    for phase in finish:
        need(_names(phase.outputs, "generated") == generated, f"phase {phase.name} does not make step.generated")
    for phase in manifest.phases:
        if phase.role == "generate.step" and not finish:
            need(generated <= _names(phase.outputs, "state"), f"phase {phase.name} does not make step.generated")


def _check_flow(manifest: Manifest) -> None:
    """Every input has the type of the output that it comes from: phases do not check their arguments."""
    output_types = {p.name: {port.key: (port.shape, port.dtype) for port in p.outputs} for p in manifest.phases}
    for phase in manifest.phases:
        passed_on = [port for port in phase.inputs if port.kind in PASSED_ON]
        for source, port in itertools.product(_sources(manifest, output_types, phase), passed_on):
            is_same = source.get(port.key) == (port.shape, port.dtype)
            need(is_same, f"phase {phase.name}: {port.kind} {port.name} is not made so")


def _sources(manifest: Manifest, output_types: Mapping[str, Types], phase: Phase) -> list[Types]:
    """The types of the values that each call of ``phase`` may get, by port; one entry for each possible source."""
    outputs_of = lambda role: output_types.get(stacked_name(role, phase.stack), {})  # noqa: E731
    last_state = {("generated", n): outputs_of("generate.step").get(("state", n)) for n in manifest.step.generated}
    generated = outputs_of(FINISH) or {key: type for key, type in last_state.items() if type is not None}
    trained = [_batch(manifest.loader(name), phase.stack) for name in manifest.training_loaders()]
    eval_batches = {f"eval.{p.name}": (p, _batch(manifest.loader(p.loader))) for p in manifest.step.passes}
    generating = [batch for p, batch in eval_batches.values() if p.generate and phase.stack == 1]
    sums = [output_types[p.name] for p in manifest.phases if p.role == "train"]
    return {
        "generate.init": [*trained, *generating],
        "generate.step": [outputs_of("generate.init"), outputs_of("generate.step")],
        "generate.finish": [outputs_of("generate.step")],
        "train": [{**batch, **generated, **sum} for batch, sum in itertools.product(trained, sums)],
        "update": sums,
        **{name: [{**batch, **generated} if p.generate else batch] for name, (p, batch) in eval_batches.items()},
    }.get(phase.name if phase.name in eval_batches else phase.role, [])


def _batch(loader: Loader, stack: int = 1) -> Types:
    """The types of a batch's fields, by port."""
    front = () if stack == 1 else (stack,)
    return {("field", f.name): ((*front, loader.batch, *f.shape), f.dtype) for f in loader.fields}


def _role(phase: Phase) -> str:
    """The key of ``phase`` in KINDS and REPORTED: each pass has a name of its own."""
    return "eval" if phase.name.startswith("eval.") else phase.role


def _kinds(phase: Phase) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return KINDS[_role(phase)]


def _names(ports: Iterable[Port], kind: str) -> set[str]:
    return {port.name for port in ports if port.kind == kind}


def _check_phase(manifest: Manifest, phase: Phase) -> None:
    at = f"phase {phase.name}"
    declared = {("param", p.name): (p.shape, p.dtype) for p in manifest.parameters}
    declared |= {("optimizer", o.name): (o.shape, o.dtype) for o in manifest.optimizer}
    for what, ports, kinds in zip(("an input", "an output"), (phase.inputs, phase.outputs), _kinds(phase), strict=True):
        need_unique(at, (f"{p.kind} {p.name}" for p in ports))
        for port in ports:
            need(port.kind in kinds, f"{at}: {what} is of the kind {port.kind[:30]!r}")
            need_name(at, port.name)
            need(
                (port.name == "") == (port.kind in UNNAMED_KINDS),
                f"{at}: {port.kind} {port.name[:30]!r} is not a name of it",
            )
            check_type(f"{at}: {port.kind} {port.name}", port.shape, port.dtype)
            if port.kind in ("param", "optimizer"):
                need(
                    declared.get(port.key) == (port.shape, port.dtype),
                    f"{at}: {port.kind} {port.name} is not declared so",
                )
            _check_scalar(at, port, phase.stack)
    _check_in_place(at, phase)


def _check_scalar(at: str, port: Port, stack: int) -> None:
    """A call for ``stack`` microbatches has a metric for each, and a ctx for each where ctx differs between them."""
    per_microbatch = () if stack == 1 else (stack,)
    if port.kind == "ctx":
        need(port.name in CTX, f"{at}: ctx has no {port.name[:30]}")
        shape = per_microbatch if port.name in MOVING else ()
        need((port.shape, port.dtype) == (shape, "i64"), f"{at}: ctx {port.name} is not i64{list(shape)}")
    if port.kind in ("trip", "counter"):
        need((port.shape, port.dtype) == ((), "i64"), f"{at}: {port.kind} {port.name} is not an i64 scalar")
    if port.kind == "seed":
        need((port.shape, port.dtype) == ((2,), "u32"), f"{at}: seed is not u32[2]")
    if port.kind == "metric":
        need(
            port.shape == per_microbatch,
            f"{at}: metric {port.name} is not {'a scalar' if stack == 1 else list(per_microbatch)}",
        )


def _check_in_place(at: str, phase: Phase) -> None:
    for output, input in phase.in_place:
        need(0 <= output < len(phase.outputs) and 0 <= input < len(phase.inputs), f"{at}: in_place is out of range")
        a, b = phase.outputs[output], phase.inputs[input]
        need(a == b, f"{at}: in_place joins {a.kind} {a.name} and {b.kind} {b.name}")
        need(
            a.kind in DONATABLE_KINDS or phase.name == "update", f"{at}: {a.kind} {a.name} may not be written in place"
        )
    need_unique(f"{at}: in_place", (str(o) for o, _ in phase.in_place))
    need_unique(f"{at}: in_place", (str(i) for _, i in phase.in_place))
