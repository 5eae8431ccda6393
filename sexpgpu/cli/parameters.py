"""The arguments and options of all commands: what each is called, what it may be, and its help."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

from .values import address, count, definition, degree, memory_size, seed, text, trials


def _option(*names: str, help: str, **more: Any) -> Any:
    return typer.Option(*names, help=help, show_default=False, **more)


RunFile = Annotated[str, typer.Argument(metavar="FILE", parser=text, help="The run file, such as run.sx.")]
Artifact = Annotated[str, typer.Argument(metavar="ARTIFACT", parser=text, help="A file made by sexpgpu build.")]
OtherArtifact = Annotated[str, typer.Argument(metavar="OTHER", parser=text, help="Another one.")]

OutputFormat = Annotated[Literal["text", "json"], _option(help="json: results and errors, an object a line.")]
TABLE = "json: a run a line; csv: a table."
TableFormat = Annotated[Literal["text", "json", "csv"], _option("--output-format", help=TABLE)]
STACK = "Microbatches in one call; auto, the default: what costs least, where the run allows it."
Stack = Annotated[int | None, _option(parser=degree, metavar="auto|N", help=STACK)]
Jobs = Annotated[
    int | None, _option(parser=count, metavar="N", help="Processes that compile (default: a core each).")
]
DEFINE = "The value of a (def NAME ...) that is a number or a string, in place of the file's."
Define = Annotated[list[str] | None, _option("-D", "--define", parser=definition, metavar="NAME=VALUE", help=DEFINE)]

# runs
RUNS = "Directories that were --out of sexpgpu-run, or folders of such directories."
RunFolders = Annotated[list[str], typer.Argument(metavar="DIR...", parser=text, help=RUNS)]
METRICS = "A column of its own, such as accuracy or held-out/accuracy; default: the losses."
Metrics = Annotated[list[str] | None, _option("--metric", parser=text, metavar="NAME", help=METRICS)]

# explain
Cost = Annotated[bool, _option("--cost", help="Print what the cost model expects of each phase.")]
COMPILED = "Compile, and print what a build would report; see --cost too."
CompiledTarget = Annotated[str | None, _option("--target", parser=text, metavar="T[,T]", help=COMPILED)]

# build
Output = Annotated[str, _option("-o", "--out", "--output", parser=text, metavar="RUN.tar", help="The artifact.")]
TARGETS = "See sexpgpu targets; default: cpu, all of this architecture."
Targets = Annotated[str, _option("--target", parser=text, metavar="T[,T]", help=TARGETS)]
Force = Annotated[bool, _option("--force", help="Replace an existing output.")]
Diagnostics = Annotated[
    list[str] | None,
    _option("--diagnostic", parser=text, metavar="NAME", help="Keep this diagnostic in the artifact."),
]
LIMIT = "Refuse a run that takes more than this, such as 4GiB."
MemoryLimit = Annotated[int | None, _option(parser=memory_size, metavar="SIZE", help=LIMIT)]
RUNTIME = "libtvm_runtime.so for a target of another machine; of CUDA's, beside it."
Runtime = Annotated[str | None, _option(parser=text, metavar="FILE", help=RUNTIME)]
GRAPHS = "off: a run on a GPU launches its kernels one by one; default: as CUDA graphs, with the same bits."
Graphs = Annotated[Literal["auto", "off"], _option(help=GRAPHS)]
StrictSchedules = Annotated[bool, _option("--strict-schedules", help="Refuse a kernel that no schedule rule took.")]
RECORDS = "Replay these tuning records; shipped: ours."
Records = Annotated[str | None, _option(parser=text, metavar="DIR", help=RECORDS)]
RequireTuned = Annotated[bool, _option("--require-tuned", help="Refuse a kernel without a tuning record.")]
Dump = Annotated[str | None, _option(parser=text, metavar="DIR", help="Write the module after each pass.")]

# tune
Target = Annotated[str, _option(parser=text, metavar="T", help="See sexpgpu targets.")]
Trials = Annotated[int, _option(parser=trials, metavar="N", help="Candidates of each kernel.")]
RECORDS_OUT = "Where records go, and those of before are kept."
RecordsOut = Annotated[str, _option("-o", "--out", parser=text, metavar="DIR", help=RECORDS_OUT)]
Local = Annotated[bool, _option("--local", help="Measure on this machine's CPU.")]
TRACKER = "Measure on servers of this tracker."
Tracker = Annotated[str | None, _option(parser=address, metavar="HOST:PORT", help=TRACKER)]
ServerKey = Annotated[str | None, _option("--key", parser=text, metavar="KEY", help="The servers' key.")]
Seed = Annotated[int, _option(parser=seed, metavar="N", help="Of the search, as any :seed (default: 1).")]
Only = Annotated[str | None, _option(parser=text, metavar="PATTERN", help="Kernels by name, such as '*matmul*'.")]
Threads = Annotated[
    int | None, _option(parser=count, metavar="N", help="That measure (default: the cores it may use).")
]
