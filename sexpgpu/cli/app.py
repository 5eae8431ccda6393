"""The command line's grammar: commands as typed functions, whose docstrings are their help.

Each imports what it needs in its body, so that no command loads more.
"""

from __future__ import annotations

from typing import Annotated

import typer

from .. import __version__
from . import parameters as p
from . import paths
from .usage import Usage

EXITS = """\
exit status: 0 done, 1 wrong input (or a difference that diff found), 2 wrong usage, 3 this machine or its software
cannot do it, 4 artifact refused, 5 reading or writing failed, 70 our bug, 128+n stopped by signal n.

sexpgpu-run, on the machine that trains, runs what build makes."""

app = typer.Typer(
    name="sexpgpu",
    epilog=EXITS,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    suggest_commands=False,  # usage.py does, on the same line
    context_settings={"help_option_names": ["-h", "--help"]},
)


def print_version(wanted: bool) -> None:
    if wanted:
        print(f"sexpgpu {__version__}")
        raise typer.Exit


@app.callback()
def sexpgpu(
    version: Annotated[
        bool, typer.Option("--version", callback=print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Training runs as compiled artifacts."""


def values(command: str, define: list[str] | None) -> dict[str, str]:
    """The values of ``-D`` by name; Usage for a name twice."""
    out: dict[str, str] = {}
    for given in define or ():
        name, _, value = given.partition("=")
        if name in out:
            raise Usage(f"-D {name} is given twice", f"sexpgpu {command}", "give one value")
        out[name] = value
    return out


@app.command()
def check(file: p.RunFile, define: p.Define = None, output_format: p.OutputFormat = "text") -> int:
    """Report every fault of a run file; needs no compiler."""
    paths.check_read(file)
    from .commands import run_check

    return run_check(file, values("check", define), output_format == "json")


@app.command()
def explain(
    file: p.RunFile,
    define: p.Define = None,
    stack: p.Stack = None,
    cost: p.Cost = False,
    target: p.CompiledTarget = None,
    jobs: p.Jobs = None,
    output_format: p.OutputFormat = "text",
) -> int:
    """Print a run's phases and their graphs, or what a compiler makes of them."""
    paths.check_read(file)
    from ..build.options import CompileOptions
    from .commands import run_explain

    options = None if target is None else CompileOptions(target=target, jobs=jobs)
    return run_explain(file, values("explain", define), cost, options, stack, output_format == "json")


@app.command()
def build(
    file: p.RunFile,
    output: p.Output,
    target: p.Targets = "cpu",
    define: p.Define = None,
    stack: p.Stack = None,
    jobs: p.Jobs = None,
    force: p.Force = False,
    diagnostic: p.Diagnostics = None,
    memory_limit: p.MemoryLimit = None,
    runtime: p.Runtime = None,
    graphs: p.Graphs = "auto",
    strict_schedules: p.StrictSchedules = False,
    records: p.Records = None,
    require_tuned: p.RequireTuned = False,
    dump: p.Dump = None,
    output_format: p.OutputFormat = "text",
) -> int:
    """Compile a run file into one artifact."""
    if require_tuned and records is None:
        raise Usage("--require-tuned needs --records", "sexpgpu build", "give the folder that tune -o made")
    paths.check_read(file, runtime, records)
    paths.check_written(output, dump)
    from ..build.options import BuildOptions
    from .commands import run_build

    kernels = {"graphs": graphs, "strict_schedules": strict_schedules, "dump": paths.absolute(dump)}
    tuning = {"records": records, "require_tuned": require_tuned}
    output_file = {"output": output, "force": force, "memory_limit": memory_limit, "runtime": runtime}
    options = BuildOptions(file=file, target=target, stack=stack, jobs=jobs, **kernels, **tuning, **output_file)
    return run_build(options, values("build", define), diagnostic or (), output_format == "json")


@app.command()
def tune(
    file: p.RunFile,
    target: p.Target,
    trials: p.Trials,
    out: p.RecordsOut,
    define: p.Define = None,
    local: p.Local = False,
    tracker: p.Tracker = None,
    key: p.ServerKey = None,
    seed: p.Seed = 1,
    only: p.Only = None,
    threads: p.Threads = None,
    stack: p.Stack = None,
    output_format: p.OutputFormat = "text",
) -> int:
    """Measure schedules of a run's kernels, for builds to replay."""
    check_place(local, tracker, key, threads)
    paths.check_read(file)
    paths.check_written(out)
    from ..build.options import TuneOptions
    from .commands import run_tune

    place = {"tracker": tracker, "key": key or "", "threads": threads, "json": output_format == "json"}
    options = TuneOptions(target=target, out=out, trials=trials, seed=seed, only=only, **place)
    return run_tune(file, values("tune", define), stack, options)


def check_place(local: bool, tracker: str | None, key: str | None, threads: int | None) -> None:
    """Usage unless ``tune`` measures in one place, of which all is said and nothing of the other."""
    command = "sexpgpu tune"
    if local == (tracker is not None):
        what = "--local and --tracker are two places" if local else "one of --local and --tracker is required"
        raise Usage(what, command, "give one of them")
    if tracker and not key:
        raise Usage("--tracker needs --key, the key of the servers that measure", command, "give both")
    if local and key is not None:
        raise Usage("--key is for --tracker, and --local asks no server", command, "leave --key out")
    if tracker and threads:
        what = "--threads is for --local; a server has as many as its TVM_NUM_THREADS says"
        raise Usage(what, command, "leave --threads out")


@app.command()
def inspect(artifact: p.Artifact, output_format: p.OutputFormat = "text") -> int:
    """Print what an artifact holds; loads no code of it."""
    paths.check_read(artifact)
    from .commands import run_inspect

    return run_inspect(artifact, output_format)


@app.command()
def verify(artifact: p.Artifact, output_format: p.OutputFormat = "text") -> int:
    """Check every byte of an artifact against its manifest."""
    paths.check_read(artifact)
    from .commands import run_verify

    return run_verify(artifact, output_format == "json")


@app.command()
def diff(artifact: p.Artifact, other: p.OtherArtifact, output_format: p.OutputFormat = "text") -> int:
    """Name the first difference of two artifacts."""
    paths.check_read(artifact, other)
    from .commands import run_diff

    return run_diff(artifact, other, output_format == "json")


@app.command()
def targets(output_format: p.OutputFormat = "text") -> int:
    """List the targets of --target."""
    from .commands import run_targets

    return run_targets(output_format == "json")


@app.command()
def runs(folders: p.RunFolders, metric: p.Metrics = None, output_format: p.TableFormat = "text") -> int:
    """Print a table of runs: artifact, seed, steps, seconds, and the last value, minimum and maximum of metrics."""
    paths.check_read(*folders)
    from .commands import run_runs

    return run_runs(folders, metric or (), output_format)
