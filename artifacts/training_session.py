"""A training run: choose where to start, train, save checkpoints, report."""

from __future__ import annotations

from attrs import define, evolve, frozen

from . import reporting
from .base import atomic_files
from .base.errors import CKPT_PRESENT, RunError
from .checkpoint import contents, identity, store
from .checkpoint import identity_forms as forms
from .checkpoint.cursor import Cursor, State
from .data.loaders import Records
from .device import memory_check
from .format.manifest import Manifest, Pass
from .loop.step import Loop, PassResult, StepResult
from .metrics_log import Log
from .options import Options
from .signals import Stop, Stopped


@frozen
class Stamp:
    """The identity that this run's checkpoints get."""

    artifact: str
    identity: dict[str, str]
    data: dict[str, list[list[str]]]
    origin: str = ""


@define(eq=False)
class Session:
    """``forms``: the artifact's identity.json; ``saved``: the step of the newest checkpoint on disk, -1 without one."""

    manifest: Manifest
    options: Options
    console: reporting.Console
    stop: Stop
    loop: Loop
    stamp: Stamp
    forms: bytes
    records: dict[str, Records]
    store: store.Store
    saved: int = -1
    loss: float | None = None
    results: dict[str, PassResult] = {}  # noqa: RUF012 (attrs shares the default: it is replaced, never mutated)

    @property
    def steps(self) -> int:
        return self.options.steps or self.manifest.run.steps

    def run(self, locked: bool) -> int:
        start = self.stop.clock.now()
        state = self.begin(locked)
        self._announce(state)
        log = Log(self.options.out, self.console)
        if self.saved < 0:
            log.begin()
        else:
            log.resume(state.cursor.step)
        logged_passes = log.passes_at(state.cursor.step)
        progress = reporting.Progress(self.console, min(state.cursor.step, self.steps), self.steps, self.stop.clock)
        self.stop.at_once = False
        try:
            self._train(state, log, progress, logged_passes)
        except Stopped as stopped:
            progress.close()
            return self._stopped(state, stopped)
        except RunError as error:
            progress.close()
            raise self._failed(state, error) from error
        finally:
            progress.close()
            log.close()
        self._finish(state, self.stop.clock.now() - start)
        for text in self.loop.device.notes():
            self.console.detail(text)
        return 0

    # Where to start

    def begin(self, locked: bool) -> State:
        """The state to start from: the checkpoint, the forked weights, or the seed."""
        nbytes = memory_check.checkpoint_bytes(self.manifest)
        self.store.check_place()
        present = self.store.steps()
        if present and not self.options.resume:
            raise RunError(
                CKPT_PRESENT,
                f"the directory holds checkpoints up to step {present[-1]}",
                self.options.out,
                "continue them with --resume, or choose another --out",
            )
        loaded = self._resumed(bool(present))
        state = self._restore(loaded) if loaded else self._started()
        self.store.prepare(nbytes, locked)
        if locked:
            atomic_files.sweep(self.options.out)
        forms.keep(self.options.out, self.forms, self.console.warn, begins=loaded is None)
        for name in self.store.foreign_names():
            self.console.detail(f"not a checkpoint, left alone: {self.store.folder}/{name}")
        return state

    def _started(self) -> State:
        """The state before the first step. It is computed before anything is written, so that an error leaves
        nothing."""
        state = self.loop.initial()
        if self.options.fork:
            self._fork(state, self.options.fork)
        return state

    def _resumed(self, present: bool) -> contents.Loaded | None:
        if not self.options.resume or (self.options.resume == "auto" and not present):
            return None
        return self.store.newest(self.options.strict, self._check_belongs)

    def _check_belongs(self, loaded: contents.Loaded) -> None:
        entry = loaded.entry
        changed = forms.Changes(forms.of_directory(self.options.out), self.forms, entry.identity, entry.data)
        contents.check_belongs(loaded, self.manifest, self.stamp.identity, self.stamp.data, changed)

    def _restore(self, loaded: contents.Loaded) -> State:
        tensor = self.loop.device.tensor
        self.stamp = evolve(self.stamp, origin=loaded.entry.origin)
        self.saved = loaded.entry.cursor.step
        return State(
            loaded.entry.cursor,
            {name: tensor(array) for name, array in loaded.params.items()},
            {name: tensor(array) for name, array in loaded.optim.items()},
        )

    def _fork(self, state: State, folder: str) -> None:
        """Overwrite the parameters of ``state`` with those of another run, in place: new tensors would take memory
        twice."""
        loaded = store.find(folder, self.options.strict, self.console.warn)
        contents.check_fit(loaded.params, self.manifest.parameters, loaded.path)
        for name, array in loaded.params.items():
            self.loop.device.write(state.params[name], array)
        self.stamp = evolve(self.stamp, origin=loaded.params_sha256)
        self.console.line(f"forked from {loaded.path}", {"forked": loaded.path})

    # Training

    def _train(self, state: State, log: Log, progress: reporting.Progress, logged_passes: set[str]) -> None:
        """Steps, passes and checkpoints until the last step, or the end of the data."""
        if state.cursor.step:
            self._passes(state, log, progress, logged_passes)
        first = state.cursor.step + 1
        while state.cursor.step < self.steps:
            if not self.loop.has_data_for_step(state.cursor):
                progress.clear()
                self.console.line(
                    f"the data ends after step {state.cursor.step}: its :epochs are over",
                    {"step": state.cursor.step, "data": "end"},
                )
                break
            start = self.stop.clock.now()
            result = self.loop.step(state)
            self._log_step(state.cursor, result, log, progress, self.stop.clock.now() - start)
            if state.cursor.step == first:
                self.loop.device.step_finished()
            self._passes(state, log, progress, set())
            if self._due(state.cursor.step, self.manifest.run.checkpoint_every):
                self.save(state)
        self._last_passes(state, log, progress)

    def _due(self, step: int, every: int | None) -> bool:
        return every is not None and step % every == 0

    def _log_step(
        self, cursor: Cursor, result: StepResult, log: Log, progress: reporting.Progress, seconds: float
    ) -> None:
        self.loss = result.loss
        line = reporting.step_line(cursor.step, result, cursor.records, cursor.counters, seconds)
        log.add(line)
        progress.step(line["loss"])
        if not self._due(cursor.step, self.manifest.run.log_every) and cursor.step != self.steps:
            return
        if not progress.shown:
            self.console.line(reporting.step_text(line, self.steps), line)
        self._diagnose(f"step {cursor.step}", cursor.step, result.diagnostics, progress)

    def _passes(self, state: State, log: Log, progress: reporting.Progress, logged_passes: set[str]) -> None:
        """Run the passes that are due at this step and not in ``logged_passes``."""
        for eval_pass in self.manifest.step.passes:
            if self._due(state.cursor.step, eval_pass.every) and eval_pass.name not in logged_passes:
                self._pass(state, eval_pass, log, progress)

    def _last_passes(self, state: State, log: Log, progress: reporting.Progress) -> None:
        """After the last step, run every pass that has not run at this step."""
        logged_passes = log.passes_at(state.cursor.step)
        for eval_pass in self.manifest.step.passes:
            if not self._due(state.cursor.step, eval_pass.every) and eval_pass.name not in logged_passes:
                self._pass(state, eval_pass, log, progress)

    def _pass(self, state: State, eval_pass: Pass, log: Log, progress: reporting.Progress) -> None:
        start = self.stop.clock.now()
        result = self.loop.evaluate(state, eval_pass)
        line = reporting.pass_line(state.cursor.step, eval_pass.name, result, self.stop.clock.now() - start)
        self.results = {**self.results, eval_pass.name: evolve(result, diagnostics={})}
        log.add(line)
        progress.clear()
        self.console.line(reporting.pass_text(line), line)
        self._diagnose(
            f"pass {eval_pass.name} at step {state.cursor.step}", state.cursor.step, result.diagnostics, progress
        )

    def _diagnose(self, where: str, step: int, tensors: dict, progress: reporting.Progress) -> None:
        for name in self.options.diagnostics:
            if name in tensors:
                progress.clear()
                array = self.loop.device.numpy(tensors[name])
                texts = [f"diagnostic {name}, {where}: {array.dtype}{list(array.shape)}", *str(array).split("\n")]
                self.console.lines(texts, {"diagnostic": name, "step": step, "values": array.tolist()}, always=True)

    def save(self, state: State) -> None:
        """A checkpoint of the last finished step, if it has none yet."""
        if self.saved == state.cursor.step:
            return
        stamp, seed = self.stamp, self.manifest.run.seed
        entry = contents.Entry(
            run_id=identity.run_id(stamp.identity, seed, stamp.origin),
            origin=stamp.origin,
            artifact=stamp.artifact,
            seed=seed,
            identity=stamp.identity,
            data={loader: tuple(map(tuple, pairs)) for loader, pairs in stamp.data.items()},
            cursor=state.cursor,
        )
        path = self.store.save(entry, *self.loop.arrays(state))
        self.saved = state.cursor.step
        self.console.detail(f"saved {path}")

    # How it ends

    def _stopped(self, state: State, stopped: Stopped) -> int:
        self.save(state)
        path = self.store.path(state.cursor.step)
        self.console.warn(f"stopped by {stopped} after step {state.cursor.step}; saved {path}; continue with --resume")
        return stopped.exit

    def _failed(self, state: State, error: RunError) -> RunError:
        """``error``, its hint naming the checkpoint to go on from: of the last finished step where that state is sound,
        else the last one that was saved."""
        if error.code.name.startswith(("E-NUM", "E-DATA")):
            self.save(state)
            hint = f"the state after step {state.cursor.step} is saved in {self.store.path(state.cursor.step)}"
        elif error.code.name.startswith("E-DEVICE"):
            last = f"the last checkpoint is {self.store.path(self.saved)}"
            hint = last if self.saved >= 0 else "there is no checkpoint yet"
        else:
            return error
        error.hint = "; ".join(filter(None, (error.hint, hint)))
        return error

    def _announce(self, state: State) -> None:
        run = self.manifest.run
        where = f"from step {state.cursor.step} to {self.steps}" if state.cursor.step else f"{self.steps} steps"
        artifact = f"sha256:{self.stamp.artifact}"
        data = {"run": run.name, "step": state.cursor.step, "steps": self.steps, "artifact": artifact}
        self.console.line(f"run {run.name}: {where}, artifact {artifact}", data)
        for eval_pass in self.manifest.step.passes:
            records = self.records[eval_pass.loader]
            left_out = records.count % records.loader.batch
            if left_out and eval_pass.batches is None:
                last = f"the last {left_out} of {records.count} records"
                text = f"pass {eval_pass.name} leaves out {last}: they fill no batch"
                self.console.line(text, {"left_out": left_out, "of": eval_pass.name, "records": records.count})

    def _finish(self, state: State, seconds: float) -> None:
        self.save(state)
        path = self.store.path(state.cursor.step)
        entry, _ = contents.read_entry(path)
        digest = next(f.sha256 for f in entry.files if f.path == contents.PARAMS)
        passes = {
            name: {"loss": reporting.number(r.loss), **{k: reporting.number(v) for k, v in r.metrics.items()}}
            for name, r in self.results.items()
        }
        loss = None if self.loss is None else reporting.number(self.loss)
        text = [
            f"done: step {state.cursor.step}"
            + ("" if self.loss is None else f", loss {self.loss:.6g}")
            + f", {seconds:.1f} s, a signal would have waited {self.stop.longest * 1e3:.1f} ms at most"
        ]
        text += [f"pass {name}: " + "  ".join(f"{k} {v}" for k, v in values.items()) for name, values in passes.items()]
        text += [f"checkpoint {path}", f"params sha256:{digest}"]
        data = {"done": True, "step": state.cursor.step, "loss": loss, "passes": passes, "checkpoint": path}
        data |= {"params": f"sha256:{digest}", "seconds": round(seconds, 6), "latency": round(self.stop.longest, 6)}
        self.console.lines(text, data)
