"""The training step: microbatches x (generate.init, trips x generate.step, generate.finish, train), then update.

Where the artifact has phases for k microbatches (``generate.init*k`` ...), a call takes k of them. Works with any
Device.
A step in progress does not change the state: only ``update`` writes parameters, and the cursor advances with it. So a
stop at any trip, microbatch or batch leaves exactly the state of the last finished step.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from attrs import frozen

from ..base.errors import NUM_DRAW, NUM_LOSS, RunError
from ..checkpoint import cursor as cursors
from ..checkpoint.cursor import Cursor, State
from ..data.loaders import Batch, Records, Training, batches_in_order
from ..device.interface import Device, Handle, Look
from ..format.manifest import MOVING, UNDRAWN, Manifest, Pass, stacked_name
from .phase_binding import Key, bind_all, of_kind

WEIGHT = "/weight"  # suffix of a metric's name: its weight in means over microbatches and batches
Number = int | tuple[int, ...]


@frozen
class StepResult:
    """The report of a finished step: means over its microbatches, in float64. ``rate``: the learning rate, or None.
    ``diagnostics``: the last microbatch's tensors."""

    loss: float
    metrics: dict[str, float]
    rate: float | None
    grad_norm: float
    diagnostics: dict[str, Handle]


@frozen
class PassResult:
    """Means over the batches of a pass, in float64; ``diagnostics``: its last batch's tensors."""

    loss: float
    metrics: dict[str, float]
    batches: int
    diagnostics: dict[str, Handle]


class Loop:
    """One run on one device. ``look`` raises when a stop is asked for."""

    def __init__(
        self, manifest: Manifest, device: Device, training: Training, passes: dict[str, Records], look: Look
    ) -> None:
        self.manifest, self.device, self.look = manifest, device, look
        self._training, self._passes = training, passes
        self._phases = bind_all(device, manifest)
        self._fixed: dict[Key, Handle] = {("seed", ""): device.tensor(_seed(manifest.run.seed))}
        self._gradients: dict[str, Handle] = {}
        self._diagnostics: dict[str, Handle] = {}  # of the last call of train
        self._read = {port.key for phase in manifest.phases for port in phase.inputs}
        self._number_tensors: dict[Key, tuple[Number, Handle]] = {}  # the last value, and its tensor

    def initial(self) -> State:
        """The state before the first step: parameters and optimizer entries from the seed. E-NUM-002 as in a
        step."""
        outputs = self._phases["init"](self._fixed)
        _check_draws(_reports(self._values(outputs), 1), "before step 1")
        return State(cursors.start(self.manifest), of_kind(outputs, "param"), of_kind(outputs, "optimizer"))

    def has_data_for_step(self, cursor: Cursor) -> bool:
        """Whether the data still holds a whole step."""
        loader = self.manifest.step.stages[cursor.stage].loader
        records_left = self._training.records_left(loader, cursor.positions[loader])
        return (
            records_left is None or records_left >= self.manifest.run.microbatches * self.manifest.loader(loader).batch
        )

    def step(self, state: State) -> StepResult:
        """Take one step: ``state`` is changed only once the step is finished. E-NUM-001 when a number is not
        finite."""
        loader = self.manifest.step.stages[state.cursor.stage].loader
        batch_size, position = self.manifest.loader(loader).batch, state.cursor.positions[loader]
        counters, gradients = dict(state.cursor.counters), self._zeroed()
        reports: list[dict[str, float]] = []
        outputs: dict[Key, Handle] = {}
        for first, count in _calls(self.manifest.run.microbatches, self.manifest.degree):
            self.look()
            self.device.before_call()
            microbatches = range(first, first + count)
            batches = [self._training.next(loader, position + m * batch_size, self.look) for m in microbatches]
            env = self._env(state, _ctx_of_call([state.cursor.ctx(m, batch_size) for m in microbatches]), counters)
            env.update((("gradient", name), handle) for name, handle in gradients.items())
            outputs = self._train(env, batches)
            gradients = self._keep_all(gradients, of_kind(outputs, "gradient"))
            values = self._values(outputs)
            counters.update((name, int(array)) for name, array in of_kind(values, "counter").items())
            reports += _reports(values, count)
            self._diagnostics = of_kind(outputs, "diagnostic")
            _check_draws(reports[-count:], f"step {state.cursor.step + 1}")
            self._check_losses(state, reports[-count:], gradients)
        self._keep(gradients)
        ends = self._update(state, counters, gradients, batch_size)
        means = _means(reports)
        state.cursor = cursors.advance(state.cursor, self.manifest, counters)
        return StepResult(means.pop("loss"), means, ends.get("lr"), ends["grad_norm"], of_kind(outputs, "diagnostic"))

    def _env(self, state: State, ctx: Mapping[str, Number], counters: dict[str, int]) -> dict[Key, Handle]:
        env = dict(self._fixed)
        env.update((("param", name), handle) for name, handle in state.params.items())
        numbers: list[tuple[str, str, Number]] = [("ctx", name, n) for name, n in ctx.items()]
        numbers += [("counter", name, n) for name, n in counters.items()]
        env.update(
            ((kind, name), self._number((kind, name), n)) for kind, name, n in numbers if (kind, name) in self._read
        )
        return env

    def _number(self, key: Key, value: Number) -> Handle:
        """``value`` on the device: the last tensor of ``key`` if the value is the same, since no phase writes into
        it."""
        last = self._number_tensors.get(key)
        if last is None or last[0] != value:
            last = self._number_tensors[key] = value, self.device.place(key, np.array(value, np.int64))
        return last[1]

    def _train(self, env: dict[Key, Handle], batches: Sequence[Batch]) -> dict[Key, Handle]:
        """Generate from ``batches``, all in one call, then the training graph on both; all outputs of ``train``."""
        self._add_fields(env, *batches)
        stack = len(batches)

        def body() -> dict[Key, Handle]:
            if self.manifest.step.trips is not None:
                self._generate(env, stack)
                self.look()
            return self._phases[stacked_name("train", stack)](env)

        return self.device.repeat(("train", stack), env, self.look, body)

    def _add_fields(self, env: dict[Key, Handle], *batches: Batch) -> None:
        """A batch's fields; those of several, one behind the other."""
        stacked = batches[0] if len(batches) == 1 else {n: np.stack([b[n] for b in batches]) for n in batches[0]}
        env.update((("field", name), self.device.place(("field", name), array)) for name, array in stacked.items())

    def _generate(self, env: dict[Key, Handle], stack: int = 1) -> None:
        """Add the generated names to ``env``: what ``finish`` made, or the last state."""
        init, step, finish = (stacked_name(f"generate.{part}", stack) for part in ("init", "step", "finish"))
        env.update(self._phases[init](env))
        numbers = self.device.trip_numbers(self.manifest.step.trips or 0, self._phases[step].carried)
        env.update(self._phases[step].repeat(env, ("trip", ""), numbers, self.look))
        if finish in self._phases:
            env.update(self._phases[finish](env))
        else:
            env.update((("generated", name), env["state", name]) for name in self.manifest.step.generated)

    def _zeroed(self) -> dict[str, Handle]:
        """The gradient accumulators, if ``train`` takes any, filled with zeros."""
        train = self._phases[stacked_name("train", self.manifest.degree)].phase
        wanted = [port for port in train.inputs if port.kind == "gradient"]
        if wanted and not self._gradients:
            from ..base.safetensors_io import dtype

            self._gradients = {p.name: self.device.tensor(np.zeros(p.shape, dtype(p.dtype))) for p in wanted}
        self.device.zero(tuple(self._gradients.values()))
        return dict(self._gradients)

    def _keep_all(self, old: dict[str, Handle], new: dict[str, Handle]) -> dict[str, Handle]:
        """``old`` with the values of ``new``, each kept at the address of the old tensor (``Device.keep``)."""
        keep = self.device.keep
        return old | {name: keep(old[name], handle) if name in old else handle for name, handle in new.items()}

    def _keep(self, gradients: dict[str, Handle]) -> None:
        """Use this step's gradient tensors as the accumulators of the next step."""
        self._gradients = {name: gradients[name] for name in self._gradients}

    def _values(self, outputs: Mapping[Key, Handle]) -> dict[Key, np.ndarray]:
        """The values of the metrics and counters of a call, with a single synchronization."""
        keys = [key for key in outputs if key[0] in ("metric", "counter")]
        return dict(zip(keys, self.device.read([outputs[key] for key in keys]), strict=True))

    def _update(
        self, state: State, counters: dict[str, int], gradients: dict[str, Handle], batch: int
    ) -> dict[str, float]:
        """Run ``update`` and put its results into ``state``. E-NUM-001 where the gradient's norm is not finite,
        E-NUM-002 where a draw had no distribution."""
        env = self._env(state, state.cursor.ctx(0, batch), counters)
        env.update((("gradient", name), handle) for name, handle in gradients.items())
        env.update((("optimizer", name), handle) for name, handle in state.optimizer.items())
        outputs = self.device.repeat(("update",), env, lambda: None, lambda: self._phases["update"](env))
        (report,) = _reports(self._values(outputs), 1)
        if not math.isfinite(report["grad_norm"]):
            raise self._not_finite(state, "update", "grad_norm", report["grad_norm"], gradients)
        _check_draws([report], f"step {state.cursor.step + 1}")
        state.params = self._keep_all(state.params, of_kind(outputs, "param"))
        state.optimizer = self._keep_all(state.optimizer, of_kind(outputs, "optimizer"))
        return report

    def _check_losses(self, state: State, reports: Sequence[dict[str, float]], gradients: dict[str, Handle]) -> None:
        for report in reports:
            if not math.isfinite(report["loss"]):
                raise self._not_finite(state, "train", "loss", report["loss"], gradients)

    def _not_finite(self, state: State, phase: str, name: str, value: float, gradients: dict[str, Handle]) -> RunError:
        first = next(self._not_finite_names(gradients), None)
        tail = f"; the first gradient that is not finite is {first}" if first else ""
        if names := list(self._not_finite_names(self._diagnostics)):
            tail += f"; diagnostics that are not finite: {', '.join(names[:8])}{' ...' if len(names) > 8 else ''}"
        return RunError(NUM_LOSS, f"{name} is {value} in phase {phase}{tail}", f"step {state.cursor.step + 1}")

    def _not_finite_names(self, handles: dict[str, Handle]) -> Iterator[str]:
        """The names of the tensors that hold a number that is not finite."""
        return (n for n, handle in handles.items() if not np.isfinite(self.device.numpy(handle)).all())

    def evaluate(self, state: State, eval_pass: Pass) -> PassResult:
        """The pass ``eval_pass`` at the parameters of ``state``."""
        records = self._passes[eval_pass.loader]
        reports: list[dict[str, float]] = []
        outputs: dict[Key, Handle] = {}
        for batch in self._batches(records, eval_pass):
            stage = self.manifest.step.stages[state.cursor.stage]
            env = self._env(state, state.cursor.ctx(0, self.manifest.loader(stage.loader).batch), state.cursor.counters)
            self._add_fields(env, batch)
            outputs = self.device.repeat(("eval", eval_pass.name), env, self.look, partial(self._judge, eval_pass, env))
            reports += _reports(self._values(outputs), 1)
            _check_draws(reports[-1:], f"pass {eval_pass.name} at step {state.cursor.step}")
        means = _means(reports)
        return PassResult(means.pop("loss"), means, len(reports), of_kind(outputs, "diagnostic"))

    def _judge(self, eval_pass: Pass, env: dict[Key, Handle]) -> dict[Key, Handle]:
        """All outputs of the pass ``eval_pass`` on the batch in ``env``."""
        if eval_pass.generate:
            self._generate(env)
        return self._phases[f"eval.{eval_pass.name}"](env)

    def _batches(self, records: Records, eval_pass: Pass) -> Iterator[Batch]:
        for batch in batches_in_order(records, eval_pass.batches):
            self.look()
            self.device.before_call()
            yield batch

    def arrays(self, state: State) -> tuple[dict[str, Any], dict[str, Any]]:
        """(parameters, optimizer entries) as arrays, in the manifest's order."""
        params = {p.name: self.device.numpy(state.params[p.name]) for p in self.manifest.parameters}
        return params, {o.name: self.device.numpy(state.optimizer[o.name]) for o in self.manifest.optimizer}


def _calls(microbatches: int, degree: int) -> Iterator[tuple[int, int]]:
    """(first microbatch, count) of each call of a step: groups of ``degree``, and the remainder one by one. An
    iterator, since there may be 2**31."""
    remainder = microbatches % degree
    yield from ((first, degree) for first in range(0, microbatches - remainder, degree))
    yield from ((first, 1) for first in range(microbatches - remainder, microbatches))


def _ctx_of_call(ctxs: Sequence[dict[str, int]]) -> dict[str, Number]:
    """The ctx of a call: a number where all its microbatches have the same, a vector where they differ."""
    if len(ctxs) == 1:
        return dict(ctxs[0])
    return {name: tuple(c[name] for c in ctxs) if name in MOVING else n for name, n in ctxs[0].items()}


def _seed(seed: int) -> np.ndarray:
    """The seed as two words of 32 bits, the low one first."""
    return np.array([seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF], np.uint32)


def _reports(values: Mapping[Key, np.ndarray], count: int) -> list[dict[str, float]]:
    """The metrics of each of ``count`` microbatches."""
    metrics = of_kind(values, "metric")
    return [{name: float(array.reshape(-1)[c]) for name, array in metrics.items()} for c in range(count)]


def _check_draws(reports: Sequence[dict[str, float]], where: str) -> None:
    """E-NUM-002 where a draw had no distribution; ``reports`` are then without the counts of such draws."""
    for report in reports:
        for name in [n for n in report if n.startswith(UNDRAWN)]:
            if count := report.pop(name):
                part = name.removeprefix(UNDRAWN)
                what = f"random-bernoulli or random-categorical drew in {part} from rows that have no distribution"
                raise RunError(NUM_DRAW, f"{what}: {count:.0f} of them", where)


def _means(reports: list[dict[str, float]]) -> dict[str, float]:
    """Each metric's mean over ``reports``, summed in order in float64. A metric with weights has the weighted mean, 0
    if all weights are 0; the weights themselves are left out."""
    means = {}
    for name in (n for n in reports[0] if not _is_weight(n, reports[0])):
        weights = [r.get(name + WEIGHT, 1.0) for r in reports]
        total, weight_sum = sum(r[name] * w for r, w in zip(reports, weights, strict=True)), sum(weights)
        means[name] = total / weight_sum if weight_sum else 0.0
    return means


def _is_weight(name: str, report: Mapping[str, float]) -> bool:
    return name.endswith(WEIGHT) and name.removesuffix(WEIGHT) in report
