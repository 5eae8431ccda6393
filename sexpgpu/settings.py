"""The plain values of a run file: loaders, passes, stages and defrun's settings. No tensor is made here."""

from __future__ import annotations

from pathlib import PurePath
from typing import Any

from attrs import frozen

from . import codes
from .diagnostics import UserError
from .forms import Form, Symbol
from .graph import GraphFull
from .precision import PRECISIONS
from .runfile import RunFile, Top
from .source import Span
from .trace import Tracer, World
from .types import DTYPES, ShapeFault, TensorType, check_shape
from .values import Indices, Key, Model, Reported, describe, sound

MAX_COUNT = 2**31 - 1

# Endings of data that the runner never reads: better said before a build. Any other may be a folder's.
UNREAD = (".csv", ".tsv", ".txt", ".json", ".parquet", ".h5", ".pt", ".pth", ".pkl", ".pickle")


@frozen
class Loader:
    """``fields``: name -> type of one record. ``sources`` is empty where ``count`` record numbers are the data."""

    name: str
    sources: tuple[str, ...]
    count: int | None
    batch: int
    fields: dict[str, TensorType]
    shuffle: bool
    epochs: int | None
    embed: bool
    span: Span

    def batched(self) -> dict[str, TensorType]:
        return {n: TensorType((self.batch, *t.shape), t.dtype) for n, t in self.fields.items()}

    def same_batches(self, other: Loader) -> bool:
        return self.fields == other.fields and self.batch == other.batch


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
    """defrun's keywords; ``stages`` is one stage over the whole run where there is no curriculum."""

    name: str
    model: Model
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

    def attempt(self, make: Any, *args: Any) -> Any:
        """``make(*args)``, or None with its fault in the report."""
        try:
            return make(*args)
        except UserError as error:
            self.world.report.add(error)
        except Reported:
            pass
        except GraphFull as fault:
            self.world.report.add(UserError(codes.FORM_LIMIT, None, str(fault), where=self.world.run.path))
        return None


def wrong(form: Form, key: str, want: str, value: Any) -> UserError:
    """E-FORM-009 at a keyword's value, to be raised; ``want``: what it must be, in words."""
    return UserError(codes.FORM_VALUE, form.span, f":{key} must be {want}, not {describe(value)}")


def read_settings(world: World) -> Settings | None:
    """Everything, or None with every fault in the report."""
    reader, run = Reader(world), world.run
    assert run.run
    loaders = {n: reader.attempt(read_loader, reader, top) for n, top in run.loaders.items()}
    passes = tuple(reader.attempt(read_pass, reader, top) for top in run.passes.values())
    model = reader.attempt(read_model, reader, run)
    made = reader.attempt(read_run, reader, run.run, model, loaders, passes)
    return made if made and not world.report else None


def read_model(reader: Reader, run: RunFile) -> Model:
    """What ``:model`` names; runfile.py has seen that it is a defmodel."""
    assert run.run
    value = reader.world.model = reader.of(run.run.keys["model"])
    assert isinstance(value, Model)
    return value


def read_run(reader: Reader, top: Top, model: Any, loaders: Any, passes: Any) -> Settings:
    """defrun with what the other forms gave. E-FORM-002 where nothing says how many steps, E-FORM-009 for a wrong one.

    An entry of ``loaders`` or ``passes``, or ``model``, is None where it has a fault; that is in the report already.
    """
    steps = reader.optional(top, "steps")
    loader = name_of(top.keys["loader"])
    stages = read_stages(reader, loader, loaders)
    planned = [s.steps for s in stages]
    if steps is None and stages and all(planned):
        steps = sum(n for n in planned if n)
    if steps is None:
        raise UserError(
            codes.FORM_MISSING, top.form.span, "defrun needs :steps, or a curriculum whose stages all have :steps"
        )
    precision = reader.value(top, "precision", Key("f32"))
    if not isinstance(precision, Key) or precision.name not in PRECISIONS:
        raise wrong(top.keys["precision"], "precision", ":f32 or :bf16", precision)
    diagnostics = reader.value(top, "diagnostics", ())
    if not isinstance(diagnostics, tuple) or not all(isinstance(d, Key) for d in diagnostics):
        raise wrong(top.keys["diagnostics"], "diagnostics", "a list of keywords", diagnostics)
    assert top.name
    return Settings(
        name=top.name,
        model=model,
        loader=loader,
        seed=reader.integer(top, "seed", 0, 0, 2**63 - 1),
        steps=steps,
        microbatches=reader.integer(top, "microbatches", 1),
        precision=precision.name,
        log_every=reader.integer(top, "log-every", 10),
        checkpoint_every=reader.integer(top, "checkpoint-every", 100),
        diagnostics=tuple(d.name for d in diagnostics),
        loaders=loaders,
        passes=passes,
        stages=stages or (Stage("run", None, None, loader),),
    )


def name_of(form: Form) -> str:
    """A loader's name; runfile.py has seen that there is such a loader."""
    assert isinstance(form, Symbol)
    return form.name


def read_stages(reader: Reader, loader: str, loaders: dict[str, Any]) -> tuple[Stage, ...]:
    """The curriculum's stages in order, none without a curriculum. ``loader``: defrun's, which a stage may replace by
    one of the same fields and batch size, else E-FORM-009."""
    top = reader.world.run.curriculum
    if top is None:
        return ()
    out = []
    for form in top.body:
        stage = stage_top(form)
        steps, records = (reader.optional(stage, k) for k in ("steps", "records"))
        own = name_of(stage.keys["loader"]) if "loader" in stage.keys else loader
        if loaders[own] and loaders[loader] and not loaders[own].same_batches(loaders[loader]):
            raise UserError(
                codes.FORM_VALUE,
                stage.keys["loader"].span,
                f"{own} has other fields or another batch size than {loader}",
            )
        out.append(Stage(str(stage.name), steps, records, own))
    return tuple(out)


def stage_top(form: Any) -> Top:
    """``(stage NAME :steps N ...)`` as a Top; syntax.py has seen that it has one of :steps and :records."""
    items = form.items
    keys = {k.name: v for k, v in zip(items[2::2], items[3::2], strict=True)}
    return Top("stage", items[1].name, form, keys, None, ())


def read_pass(reader: Reader, top: Top) -> Pass:
    every = reader.integer(top, "every", 1)
    assert top.name
    return Pass(top.name, name_of(top.keys["loader"]), every, reader.optional(top, "batches"), top)


def read_loader(reader: Reader, top: Top) -> Loader:
    """A defloader. E-DATA-001 for a source that no run can use, E-DATA-002 where ``(indices N)`` has other fields than
    its one, E-FORM-009 for any other wrong value."""
    source = reader.value(top, "source")
    sources = (source,) if isinstance(source, str) else source
    count = source.count if isinstance(source, Indices) else None
    if count is None and not (isinstance(sources, tuple) and sources and all(isinstance(s, str) for s in sources)):
        raise wrong(top.keys["source"], "source", "a path, a list of paths or (indices N)", source)
    for path in sources if count is None else ():
        if PurePath(path).suffix in UNREAD:
            what = f"{path} is of a kind that the runner does not read"
            hint = "use .npz, a folder of .npy files, .safetensors or .jsonl"
            raise UserError(codes.DATA_SOURCE, top.keys["source"].span, what, hint=hint)
    fields = read_fields(reader, top)
    if count is not None and list(fields.values()) != [TensorType((), "i64")]:
        raise UserError(codes.DATA_FIELD, top.keys["fields"].span, "(indices N) has one field, [] :i64")
    batch = reader.integer(top, "batch", 1)
    if count is not None and count < batch:
        raise UserError(
            codes.DATA_SOURCE, top.keys["source"].span, f"a batch needs {batch} records and there are {count}"
        )
    embed = reader.flag(top, "embed", False)
    shuffle = reader.flag(top, "shuffle", True)
    assert top.name
    return Loader(
        top.name,
        () if count is not None else sources,
        count,
        batch,
        fields,
        shuffle,  # type: ignore[arg-type]
        reader.optional(top, "epochs"),
        embed,
        top.form.span,
    )


def read_fields(reader: Reader, top: Top) -> dict[str, TensorType]:
    """``(list :row [seq] :i32 :stride [] :i32)``: name, shape and dtype of one record, in turn."""
    form = top.keys["fields"]
    value = reader.of(form)
    triples = list(zip(value[::3], value[1::3], value[2::3], strict=False)) if isinstance(value, tuple) else []
    if not triples or len(value) % 3:
        raise wrong(form, "fields", "a list of :name [shape] :dtype, in turn", value)
    out: dict[str, TensorType] = {}
    for name, shape, dtype in triples:
        if not (isinstance(name, Key) and isinstance(shape, tuple) and isinstance(dtype, Key) and dtype.name in DTYPES):
            size = "[]" if shape == () else describe(shape)
            what = f":fields has {describe(name)} {size} {describe(dtype)} where :name [shape] :dtype should stand"
            raise UserError(codes.FORM_VALUE, form.span, what, hint=f"dtypes are {' '.join(':' + d for d in DTYPES)}")
        if name.name in out:
            raise UserError(codes.FORM_DUPLICATE, form.span, f"the field :{name.name} is given twice")
        try:
            out[name.name] = TensorType(check_shape(shape), dtype.name)
        except (ShapeFault, TypeError) as fault:
            raise UserError(codes.SHAPE_FIT, form.span, f"the field :{name.name}: {fault}") from None
    return out


def trips_of(reader: Reader, top: Top) -> int:
    """E-GEN-005 unless an integer of 1 or more."""
    form = top.keys["trips"]
    value = reader.of(form)
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_COUNT:
        raise UserError(
            codes.GEN_TRIPS, form.span, f":trips is {describe(value)}", hint=f"give an integer from 1 to {MAX_COUNT}"
        )
    return value
