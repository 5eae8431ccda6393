"""The manifest: everything that the runner knows about a run. It is canonical JSON; its sha256 is the artifact's
hash."""

from __future__ import annotations

from attrs import field, frozen

from ..base import canonical_json
from ..base.json_classes import plain

MOVING = ("microbatch", "records", "stage-records")  # ctx that differs between the microbatches of a step
FORMAT = "sexpgpu-artifact"
VERSION = 1


@frozen
class Toolchain:
    """Versions of the tools that made the code: part of the hash, since the bytes depend on them."""

    sexpgpu: str
    tvm: str
    tvm_ffi: str
    linker: str


@frozen
class Identity:
    """sha256, in hex, of each component that decides the trajectory."""

    language: str
    model: str
    data: str
    prepare: str
    objective: str
    generate: str
    optimizer: str
    run: str


@frozen
class Run:
    """``log_every`` and ``checkpoint_every`` count steps; None: only at the end."""

    name: str
    seed: int
    steps: int
    microbatches: int
    precision: str
    log_every: int | None
    checkpoint_every: int | None
    identity: Identity


@frozen
class Tensor:
    """``shape`` in elements, outermost axis first; ``dtype`` a key of safetensors_io.DTYPES."""

    name: str
    shape: tuple[int, ...]
    dtype: str


@frozen
class Parameter:
    """A parameter of the run; a frozen one has no gradient and no optimizer entry."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    frozen: bool


@frozen
class Port:
    """One input or output of a phase: what it is (``kind``), which one (``name``), and its type."""

    kind: str
    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def key(self) -> tuple[str, str]:
        return self.kind, self.name


@frozen
class Phase:
    """``function`` is the symbol in the library. ``stack``: microbatches in one call; of more than one, the name is
    ``ROLE*stack``. ``in_place``: (output, input) pairs that share memory. ``memory_bytes``: what a call needs beside
    parameters, optimizer entries and gradients."""

    name: str
    function: str
    stack: int
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    in_place: tuple[tuple[int, int], ...]
    memory_bytes: int

    @property
    def role(self) -> str:
        """Its name without the stack."""
        return self.name.partition("*")[0]


@frozen
class Pass:
    """An evaluation: every ``every`` finished steps, over ``batches`` batches (None: all full ones)."""

    name: str
    loader: str
    every: int
    batches: int | None
    generate: bool


@frozen
class Stage:
    """A stretch of training: ``steps`` steps, or until it took ``records`` records; both None: to the end."""

    name: str
    steps: int | None
    records: int | None
    loader: str


UNDRAWN = "undrawn in "  # before the name of a part of a step: how many of its draws had no distribution


@frozen
class Step:
    """``trips`` of the generator a microbatch (None: no generator); ``stages`` in order, at least one."""

    trips: int | None
    generated: tuple[str, ...]
    passes: tuple[Pass, ...]
    stages: tuple[Stage, ...]
    diagnostics: tuple[str, ...]


@frozen
class Part:
    """low <= x < high holds of a record's integers from ``start`` up to, without, ``stop``, one an axis."""

    low: int
    high: int
    start: tuple[int, ...]
    stop: tuple[int, ...]


@frozen
class Field:
    """One field of a record; an integer x of it must satisfy low <= x < high, where they are given, and those of
    ``parts`` what these say."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    low: int | None
    high: int | None
    parts: tuple[Part, ...] = ()

    def __attrs_post_init__(self) -> None:
        rank = len(self.shape)
        if any((len(part.start), len(part.stop)) != (rank, rank) for part in self.parts):
            raise canonical_json.Malformed(f"a part of the field {self.name} has another rank than its shape")


@frozen
class Loader:
    """``kind`` is files or indices. ``sources`` are paths as written; ``embedded`` members stand in for them."""

    name: str
    kind: str
    sources: tuple[str, ...]
    embedded: tuple[str, ...]
    count: int | None
    batch: int
    shuffle: bool
    epochs: int | None
    fields: tuple[Field, ...]


@frozen
class Memory:
    """The memory plan, in bytes: what the run holds throughout, what a call of ``train`` and of the generator's largest
    phase adds, and what all tensors of the run take together: ``device`` once, ``thread`` for each thread."""

    parameters_bytes: int
    optimizer_bytes: int
    gradients_bytes: int
    train_bytes: int
    generation_bytes: int
    device_bytes: int
    thread_bytes: int


@frozen
class Target:
    """A library and what its machine must have: ``cpu_flags`` in the words of /proc/cpuinfo.

    device: "cpu" or "cuda", a row of interface.ROWS
    archs:  what the library's GPU kernels were compiled for: "sm_90" (a cubin) or "compute_80" (PTX); () on a CPU
    graphs: whether the runner may capture its phases as CUDA graphs; false on a CPU
    """

    name: str
    library: str
    machine: str
    cpu_flags: tuple[str, ...]
    device: str
    archs: tuple[str, ...]
    graphs: bool


@frozen
class Runtime:
    """Members: TVM's runtime, and its part for CUDA where a target needs it."""

    library: str
    cuda: str | None


@frozen
class File:
    """A member: its path, its size in bytes and its sha256 in hex."""

    path: str
    size: int
    sha256: str


@frozen
class Manifest:
    """All that the runner knows of the run; docs/artifact.md has the meaning of each key."""

    toolchain: Toolchain
    run: Run
    parameters: tuple[Parameter, ...]
    optimizer: tuple[Tensor, ...]
    phases: tuple[Phase, ...]
    step: Step
    loaders: tuple[Loader, ...]
    memory: Memory
    targets: tuple[Target, ...]
    runtime: Runtime
    files: tuple[File, ...] = ()
    format: str = field(default=FORMAT)
    version: int = VERSION

    def phase(self, name: str) -> Phase | None:
        return next((p for p in self.phases if p.name == name), None)

    @property
    def degree(self) -> int:
        """Microbatches that one training call takes; a rest of a step is taken one by one."""
        return max((p.stack for p in self.phases if p.role == "train"), default=1)

    def loader(self, name: str) -> Loader:
        return next(entry for entry in self.loaders if entry.name == name)

    def training_loaders(self) -> tuple[str, ...]:
        """Names of the loaders that training reads, in order of first use."""
        return tuple(dict.fromkeys(stage.loader for stage in self.step.stages))

    def loaders_used(self) -> tuple[str, ...]:
        """Names of the loaders that training and the passes read, in order of first use."""
        return tuple(dict.fromkeys((*self.training_loaders(), *(p.loader for p in self.step.passes))))

    def to_bytes(self) -> bytes:
        return canonical_json.dumps(plain(self))


def stacked_name(role: str, stack: int) -> str:
    """The name of the phase that does ``role`` for ``stack`` microbatches in one call."""
    return role if stack == 1 else f"{role}*{stack}"
