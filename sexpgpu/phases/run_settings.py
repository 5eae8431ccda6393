"""The plain values of a run file: loaders, passes, stages and defrun's settings. No tensor is made here."""

from __future__ import annotations

from pathlib import PurePath
from typing import Any

from attrs import frozen

from ..graph.core import GraphFull
from ..language import codes
from ..language.diagnostics import UserError
from ..language.forms import Form, Seq, Symbol
from ..language.grammar import MAX_COUNT
from ..language.runfile import RunFile, Top
from ..language.source import NOWHERE, Span
from ..language.syntax import head_of, parse
from ..ops.types import DTYPES, ShapeFault, TensorType, check_shape
from ..trace.evaluator import Tracer
from ..trace.mixed_precision import PRECISIONS
from ..trace.values import POISON, Indices, Key, Model, Reported, describe, sound
from ..trace.world import World

# Endings of data that the runner never reads: better said before a build. Any other may be a folder's.
UNREAD = (".csv", ".tsv", ".txt", ".json", ".parquet", ".h5", ".pt", ".pth", ".pkl", ".pickle")


@frozen
class Loader:
    """``fields``: name -> type of one record, or POISON where it has a fault. ``sources`` is empty where ``count``
    record numbers are the data."""

    name: str
    sources: tuple[str, ...]
    count: int | None
    batch: int
    fields: dict[str, Any]
    shuffle: bool
    epochs: int | None
    embed: bool
    span: Span

    def batched(self) -> dict[str, Any]:
        return {n: t if t is POISON else TensorType((self.batch, *t.shape), t.dtype) for n, t in self.fields.items()}

    def same_batches(self, other: Loader) -> bool:
        """Are fields and batch size equal, or is it not known for a fault?"""
        known = POISON not in (*self.fields.values(), *other.fields.values())
        return not known or (self.fields == other.fields and self.batch == other.batch)


@frozen
class Pass:
    """A ``defpass``: which loader, how many steps apart, how many batches (None: all), and its form."""

    name: str
    loader: str
    every: int
    batches: int | None
    top: Top


@frozen
class Stage:
    """``steps`` or ``records`` ends it; both None: it lasts to the end of the run."""

    name: str
    steps: int | None
    records: int | None
    loader: str


@frozen
class Settings:
    """defrun's keywords; ``stages`` is one stage over the whole run where there is no curriculum. Of a run with faults,
    a loader is None, or not there, where it has one, and a pass or a stage is left out."""

    name: str
    model: Any
    loader: str
    seed: int
    steps: int
    microbatches: int
    precision: str
    log_every: int
    checkpoint_every: int
    diagnostics: tuple[str, ...]
    loaders: dict[str, Loader]
    passes: tuple[Pass, ...]
    stages: tuple[Stage, ...]

    @property
    def training(self) -> Loader | None:
        """The training loader; None where it has a fault."""
        return self.loaders.get(self.loader)


class Reader:
    """Keyword values of top-level forms, evaluated and checked."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.tracer = Tracer(world, "settings", "settings")

    def value(self, top: Top, key: str, default: Any = None) -> Any:
        return self.of(top.keys[key]) if key in top.keys else default

    def of(self, form: Form) -> Any:
        return sound(self.tracer.evaluate(form, None))

    def integer(self, top: Top, key: str, default: int, least: int = 1, most: int = MAX_COUNT) -> int:
        """``default`` where the key is absent; a key that syntax.py demands never is."""
        return default if key not in top.keys else self.given(top, key, least, most)

    def optional(self, top: Top, key: str) -> int | None:
        return self.given(top, key, 1, MAX_COUNT) if key in top.keys else None

    def given(self, top: Top, key: str, least: int, most: int) -> int:
        value = self.value(top, key)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise wrong(top.keys[key], key, f"an integer from {least} to {most}", value)
        return value

    def flag(self, top: Top, key: str, default: bool) -> bool:
        value = self.value(top, key, default)
        if not isinstance(value, bool):
            raise wrong(top.keys[key], key, "true or false", value)
        return value

    def attempt(self, make: Any, *args: Any, form: str = "settings") -> Any:
        """``make(*args)``, or None with its fault, of the graph ``form``, in the report."""
        try:
            return make(*args)
        except UserError as error:
            self.world.fault(error, form)
        except Reported:
            pass
        except GraphFull as fault:
            self.world.report.add(UserError(codes.FORM_LIMIT, None, str(fault), where=self.world.run.path))
        return None


def wrong(form: Form, key: str, want: str, value: Any) -> UserError:
    """E-FORM-009 at a keyword's value, to be raised; ``want``: what it must be, in words."""
    return UserError(codes.FORM_VALUE, form.span, f":{key} must be {want}, not {describe(value)}")


def read_settings(world: World) -> Settings:
    """Everything. Each value is read by itself, so that every fault is found, and one with a fault is its default."""
    reader, run = Reader(world), world.run
    made = {n: reader.attempt(read_loader, reader, top) for n, top in run.loaders.items()}
    loaders = {n: loader for n, loader in made.items() if loader}
    passes = tuple(read_pass(reader, top) for top in run.passes.values())
    world.model = reader.attempt(read_model, reader, run) or POISON
    return read_run(reader, run.run or Top("defrun", "", Seq((), "(", span=NOWHERE), {}, None, ()), loaders, passes)


def read_model(reader: Reader, run: RunFile) -> Model:
    """What ``:model`` names; runfile.py has seen that it is a defmodel."""
    value = reader.of(run.run.keys["model"]) if run.run else sound(POISON)
    if not isinstance(value, Model):
        raise Reported
    return value


def read_run(reader: Reader, top: Top, loaders: dict[str, Loader], passes: tuple[Pass, ...]) -> Settings:
    """defrun with what the other forms gave. E-FORM-002 where nothing says how many steps, E-FORM-009 for a wrong
    value."""

    def number(key: str, default: int, *limits: int) -> int:
        return reader.attempt(reader.integer, top, key, default, *limits) or default

    loader = name_of(top, "loader")
    stages = read_stages(reader, loader, loaders)
    diagnostics = reader.attempt(read_diagnostics, reader, top) or ()
    return Settings(
        name=top.name or "",
        model=reader.world.model,
        loader=loader,
        seed=number("seed", 0, 0, 2**63 - 1),
        steps=reader.attempt(read_steps, reader, top, stages) or 1,
        microbatches=number("microbatches", 1),
        precision=reader.attempt(read_precision, reader, top) or "f32",
        log_every=number("log-every", 10),
        checkpoint_every=number("checkpoint-every", 100),
        diagnostics=tuple(d.name for d in diagnostics),
        loaders=loaders,
        passes=passes,
        stages=stages or (Stage("run", None, None, loader),),
    )


def read_steps(reader: Reader, top: Top, stages: tuple[Stage, ...]) -> int:
    """``:steps``, or the sum of the stages'."""
    steps = reader.optional(top, "steps")
    planned = [s.steps for s in stages]
    if steps is None and stages and all(planned):
        steps = sum(n for n in planned if n)
    if steps is None:
        lost = reader.world.report.may_be_lost("", "defcurriculum", "defrun")
        if lost or not reader.world.run.run or (reader.world.run.curriculum and reader.world.report):
            raise Reported
        what = "defrun needs :steps, or a curriculum whose stages all have :steps"
        raise UserError(codes.FORM_MISSING, top.form.span, what)
    return steps


def read_precision(reader: Reader, top: Top) -> str:
    precision = reader.value(top, "precision", Key("f32"))
    if not isinstance(precision, Key) or precision.name not in PRECISIONS:
        raise wrong(top.keys["precision"], "precision", ":f32 or :bf16", precision)
    return precision.name


def read_diagnostics(reader: Reader, top: Top) -> tuple[Key, ...]:
    diagnostics = reader.value(top, "diagnostics", ())
    if not isinstance(diagnostics, tuple) or not all(isinstance(d, Key) for d in diagnostics):
        raise wrong(top.keys["diagnostics"], "diagnostics", "a list of keywords", diagnostics)
    return diagnostics


def name_of(top: Top, key: str) -> str:
    """A loader's name; runfile.py has seen that there is such a loader, or has reported that there is none."""
    form = top.keys.get(key)
    return form.name if isinstance(form, Symbol) else ""


def read_stages(reader: Reader, loader: str, loaders: dict[str, Loader]) -> tuple[Stage, ...]:
    """The curriculum's stages in order, none without a curriculum. ``loader``: defrun's."""
    top = reader.world.run.curriculum
    forms = [form for form in top.body if not reader.world.report.is_spoilt(form)] if top else []
    stages = (reader.attempt(read_stage, reader, form, loader, loaders) for form in forms if head_of(form) == "stage")
    return tuple(stage for stage in stages if stage)


def read_stage(reader: Reader, form: Seq, loader: str, loaders: dict[str, Loader]) -> Stage:
    """One stage; it may replace ``loader`` by one of the same fields and batch size, else E-FORM-009."""
    parts = parse(form)
    stage = Top("stage", parts.name, form, parts.keys, None, ())
    steps, records = (reader.optional(stage, k) for k in ("steps", "records"))
    own = name_of(stage, "loader") if "loader" in stage.keys else loader
    mine, training = loaders.get(own), loaders.get(loader)
    if mine and training and not mine.same_batches(training):
        what = f"{own} has other fields or another batch size than {loader}"
        raise UserError(codes.FORM_VALUE, stage.keys["loader"].span, what)
    return Stage(str(stage.name), steps, records, own)


def read_pass(reader: Reader, top: Top) -> Pass:
    every = reader.attempt(reader.integer, top, "every", 1) or 1
    batches = reader.attempt(reader.optional, top, "batches")
    assert top.name
    return Pass(top.name, name_of(top, "loader"), every, batches, top)


def read_loader(reader: Reader, top: Top) -> Loader:
    """A defloader; every fault of it is reported. E-DATA-001 for a source that no run can use, E-DATA-002 where
    ``(indices N)`` has other fields than its one, E-FORM-009 for any other wrong value. Fields are all that
    others depend on: where what they are cannot be told, there is no loader."""
    source = reader.attempt(read_source, reader, top)
    count = source.count if isinstance(source, Indices) else None
    fields = reader.attempt(read_fields, reader, top)
    batch = reader.attempt(reader.integer, top, "batch", 1)
    epochs = reader.attempt(reader.optional, top, "epochs")
    shuffle, embed = (reader.attempt(reader.flag, top, k, k == "shuffle") for k in ("shuffle", "embed"))
    if not fields:
        raise Reported
    types = list(fields.values())
    if count is not None and POISON not in types and types != [TensorType((), "i64")]:
        raise UserError(codes.DATA_FIELD, top.keys["fields"].span, "(indices N) has one field, [] :i64")
    if count is not None and batch and count < batch:
        what = f"a batch needs {batch} records and there are {count}"
        reader.world.report.add(UserError(codes.DATA_SOURCE, top.keys["source"].span, what))
    if not batch:
        batch, fields = 1, dict.fromkeys(fields, POISON)
    sources = source if isinstance(source, tuple) else ()
    return Loader(str(top.name), sources, count, batch, fields, shuffle, epochs, embed, top.form.span)


def read_source(reader: Reader, top: Top) -> Indices | tuple[str, ...]:
    """Paths, one or more, or record numbers."""
    source = reader.value(top, "source")
    sources = (source,) if isinstance(source, str) else source
    if isinstance(source, Indices):
        return source
    if not (isinstance(sources, tuple) and sources and all(isinstance(s, str) for s in sources)):
        raise wrong(top.keys["source"], "source", "a path, a list of paths or (indices N)", source)
    for path in sources:
        if PurePath(path).suffix in UNREAD:
            what = f"{path} is of a kind that the runner does not read"
            hint = "use .npz, a folder of .npy files, .safetensors or .jsonl"
            raise UserError(codes.DATA_SOURCE, top.keys["source"].span, what, hint=hint)
    return sources


def read_fields(reader: Reader, top: Top) -> dict[str, Any]:
    """``(list :row [seq] :i32 :stride [] :i32)``: name, shape and dtype of one record, in turn; POISON for a name whose
    entry has a fault."""
    form = top.keys["fields"]
    value = reader.tracer.evaluate(form, None)
    triples = list(zip(value[::3], value[1::3], value[2::3], strict=False)) if isinstance(value, tuple) else []
    if not triples or len(value) % 3:
        raise wrong(form, "fields", "a list of :name [shape] :dtype, in turn", sound(value))
    out: dict[str, Any] = {}
    for name, shape, dtype in triples:
        if isinstance(sound(name), Key) and name.name in out:
            raise UserError(codes.FORM_DUPLICATE, form.span, f"the field :{name.name} is given twice")
        made = reader.attempt(read_field, form, name, shape, dtype)
        if not isinstance(name, Key):
            raise Reported
        out[name.name] = made or POISON
    return out


def read_field(form: Form, name: Any, shape: Any, dtype: Any) -> TensorType:
    if not (isinstance(name, Key) and isinstance(sound(shape), tuple) and isinstance(sound(dtype), Key)) or (
        dtype.name not in DTYPES
    ):
        size = "[]" if shape == () else describe(shape)
        what = f":fields has {describe(name)} {size} {describe(dtype)} where :name [shape] :dtype should stand"
        raise UserError(codes.FORM_VALUE, form.span, what, hint=f"dtypes are {' '.join(':' + d for d in DTYPES)}")
    try:
        return TensorType(check_shape(shape), dtype.name)
    except (ShapeFault, TypeError) as fault:
        raise UserError(codes.SHAPE_FIT, form.span, f"the field :{name.name}: {fault}") from None


def trips_of(reader: Reader, top: Top) -> int:
    """E-GEN-005 unless an integer of 1 or more."""
    form = top.keys["trips"]
    value = reader.of(form)
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_COUNT:
        raise UserError(
            codes.GEN_TRIPS, form.span, f":trips is {describe(value)}", hint=f"give an integer from 1 to {MAX_COUNT}"
        )
    return value
