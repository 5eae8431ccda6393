"""The state of a run after a number of finished steps: everything that a checkpoint saves."""

from __future__ import annotations

from typing import Any

from attrs import define, field, frozen

from ..format.manifest import Manifest, Stage


@frozen
class Cursor:
    """Where the run stands: counts, all 0 at first. ``positions``: records taken from each training loader's stream;
    ``counters``: the running totals that ``prepare`` declares; ``stage`` counts from 0."""

    step: int
    records: int
    stage: int
    stage_step: int
    stage_records: int
    positions: dict[str, int]
    counters: dict[str, int]

    def ctx(self, microbatch: int, batch: int) -> dict[str, int]:
        """The values of the ctx ports at a microbatch of the step in flight."""
        records_before = microbatch * batch
        return {
            "step": self.step,
            "microbatch": microbatch,
            "records": self.records + records_before,
            "stage": self.stage,
            "stage-step": self.stage_step,
            "stage-records": self.stage_records + records_before,
        }


@define(eq=False)
class State:
    """``params`` and ``optimizer``: name -> tensor on the device. Changed only when a step commits."""

    cursor: Cursor
    params: dict[str, Any] = field(factory=dict)
    optimizer: dict[str, Any] = field(factory=dict)


def start(manifest: Manifest) -> Cursor:
    """The cursor of a run that has not begun."""
    return at(manifest, 0)


def at(manifest: Manifest, step: int) -> Cursor:
    """The cursor after ``step`` finished steps, but for the totals of its counters, which are 0."""
    names = {port.name for phase in manifest.phases for port in phase.outputs if port.kind == "counter"}
    positions, stages, remaining = dict.fromkeys(manifest.training_loaders(), 0), manifest.step.stages, step
    number = steps = records_per_step = 0
    for number, stage in enumerate(stages):
        records_per_step = _records_per_step(stage, manifest)
        length = None if number + 1 == len(stages) else _steps_of(stage, records_per_step)
        steps = remaining if length is None else min(remaining, length)
        positions[stage.loader] += steps * records_per_step
        remaining -= steps
        if steps != length:
            break
    totals = dict.fromkeys(sorted(names), 0)
    return Cursor(step, sum(positions.values()), number, steps, steps * records_per_step, positions, totals)


def _records_per_step(stage: Stage, manifest: Manifest) -> int:
    """Records that a step of the stage takes."""
    return manifest.run.microbatches * manifest.loader(stage.loader).batch


def _steps_of(stage: Stage, records_per_step: int) -> int | None:
    """Steps of a stage that is not the last, of ``records_per_step`` records; None: it has no end."""
    return stage.steps if stage.records is None else -(-stage.records // records_per_step)


def advance(cursor: Cursor, manifest: Manifest, counters: dict[str, int]) -> Cursor:
    """The cursor after one more step, in the next stage if this one is over; the last stage never is."""
    stages = manifest.step.stages
    stage = stages[cursor.stage]
    records_taken = _records_per_step(stage, manifest)
    positions = {**cursor.positions, stage.loader: cursor.positions[stage.loader] + records_taken}
    stage_position = (cursor.stage, cursor.stage_step + 1, cursor.stage_records + records_taken)
    if _is_over(stage, stage_position[1], stage_position[2]) and cursor.stage + 1 < len(stages):
        stage_position = (cursor.stage + 1, 0, 0)
    return Cursor(cursor.step + 1, cursor.records + records_taken, *stage_position, positions, counters)


def _is_over(stage: Stage, steps: int, records: int) -> bool:
    return (stage.steps is not None and steps >= stage.steps) or (
        stage.records is not None and records >= stage.records
    )
