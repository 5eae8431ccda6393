"""``sexpgpu``: check, explain and build run files; look into artifacts. Thin: each command imports what it needs.
``run_NAME``, the command NAME: options to exit status; ``main`` prints what it raises. ``NAME_options`` adds them."""

from __future__ import annotations

import argparse
import difflib
import errno
import json
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from . import __version__, interrupt
from .diagnostics import Report, UserError, printable

EXIT_USAGE, EXIT_BUG = 2, 70
RUN_FILE, ARTIFACT = "the run file, such as run.sx", "a file made by sexpgpu build"
STACK = "microbatches in one call; auto, the default: what costs least, where the run allows it"
EXITS = """\
exit status: 0 done, 1 wrong input (or a difference that diff found), 2 wrong usage, 3 this machine or its software
cannot do it, 4 artifact refused, 5 reading or writing failed, 70 our bug, 130 stopped by SIGINT.
sexpgpu-run, on the machine that trains, runs what build makes."""


class Parser(argparse.ArgumentParser):
    """One line and exit 2 for wrong usage, with the nearest flag or command, or else with where to look."""

    def error(self, message: str) -> NoReturn:
        hint = f"see {self.prog} --help"
        if "unrecognized arguments: " in message:
            close = difflib.get_close_matches(message.rpartition(": ")[2].split()[0], self.words(), 1)
            hint = f"did you mean {close[0]}?" if close else hint
        elif "invalid choice: 'run'" in message:
            hint = "sexpgpu-run trains from an artifact"
        elif "invalid choice: " in message:
            given, *choices = re.findall(r"'([^']*)'", message)
            close = difflib.get_close_matches(given, choices, 1)
            hint = f"did you mean {close[0]}?" if close else hint
        self.exit(EXIT_USAGE, printable(f"error[E-CLI-001]: {self.prog}: {message} ({hint})") + "\n")

    def words(self) -> list[str]:
        """Every command and option, those of the commands too."""
        out: list[str] = []
        for action in self._actions:
            out += [*action.option_strings, *map(str, action.choices or ())]
            for inner in action.choices.values() if isinstance(action.choices, dict) else ():
                out += inner.words()
        return out


def parser() -> Parser:
    top = Parser(
        "sexpgpu",
        description="Training runs as compiled artifacts.",
        allow_abbrev=False,
        epilog=EXITS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"sexpgpu {__version__}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=Parser)

    def command(name: str, run: Callable[[argparse.Namespace], int], text: str) -> Parser:
        made = commands.add_parser(name, help=text, description=text, allow_abbrev=False)
        made.set_defaults(run=run)
        made.add_argument(
            "--output-format",
            choices=("text", "json"),
            default="text",
            help="json: results and errors, an object a line",
        )
        return made

    check = command("check", run_check, "Report every fault of a run file; needs no compiler.")
    check.add_argument("file", help=RUN_FILE)
    explain_options(
        command("explain", run_explain, "Print a run's phases and their graphs, or what a compiler makes of them.")
    )
    build_options(command("build", run_build, "Compile a run file into one artifact."))
    tune_options(command("tune", run_tune, "Measure schedules of a run's kernels, for builds to replay."))
    inspect = command("inspect", run_inspect, "Print what an artifact holds; loads no code of it.")
    inspect.add_argument("artifact", help=ARTIFACT)
    verify = command("verify", run_verify, "Check every byte of an artifact against its manifest.")
    verify.add_argument("artifact", help=ARTIFACT)
    diff = command("diff", run_diff, "Name the first difference of two artifacts.")
    diff.add_argument("artifact", help=ARTIFACT)
    diff.add_argument("other", help="another one")
    command("targets", run_targets, "List the targets of --target.")
    return top


def explain_options(explain: Parser) -> None:
    explain.add_argument("file", help=RUN_FILE)
    explain.add_argument("--stack", type=degree, metavar="auto|N", help=STACK)
    explain.add_argument("--cost", action="store_true", help="print what the cost model expects of each phase")
    explain.add_argument(
        "--target", metavar="T[,T]", help="compile, and print what a build would report; see --cost too"
    )
    explain.add_argument("--jobs", type=count, metavar="N", help="processes that compile (default: one a core)")
    explain.set_defaults(dump=None, graphs="auto", strict_schedules=False, records=None, require_tuned=False)


def build_options(build: Parser) -> None:
    build.add_argument("file", help=RUN_FILE)
    build.add_argument("-o", "--out", "--output", dest="output", required=True, metavar="RUN.tar", help="the artifact")
    build.add_argument(
        "--target", default="cpu", metavar="T[,T]", help="see sexpgpu targets; default: cpu, all of this architecture"
    )
    build.add_argument("--stack", type=degree, metavar="auto|N", help=STACK)
    build.add_argument("--jobs", type=count, metavar="N", help="processes that compile (default: one a core)")
    build.add_argument("--force", action="store_true", help="replace an existing output")
    build.add_argument(
        "--diagnostic", action="append", default=[], metavar="NAME", help="keep this diagnostic in the artifact"
    )
    build.add_argument(
        "--memory-limit", type=memory_size, metavar="SIZE", help="refuse a run that takes more than this, such as 4GiB"
    )
    build.add_argument(
        "--runtime", metavar="FILE", help="libtvm_runtime.so for a target of another machine; of CUDA's, beside it"
    )
    build.add_argument(
        "--graphs",
        choices=("auto", "off"),
        default="auto",
        help="off: a run on a GPU launches its kernels one by one; default: as CUDA graphs, with the same bits",
    )
    build.add_argument("--strict-schedules", action="store_true", help="refuse a kernel that no schedule rule took")
    build.add_argument("--records", metavar="DIR", help="replay these tuning records; shipped: ours")
    build.add_argument("--require-tuned", action="store_true", help="refuse a kernel without a tuning record")
    build.add_argument("--dump", metavar="DIR", help="write the module after each pass")


def tune_options(tune: Parser) -> None:
    tune.add_argument("file", help=RUN_FILE)
    tune.add_argument("--target", required=True, metavar="T", help="see sexpgpu targets")
    place = tune.add_mutually_exclusive_group(required=True)
    place.add_argument("--local", action="store_true", help="measure on this machine's CPU")
    place.add_argument("--tracker", type=address, metavar="HOST:PORT", help="measure on servers of this tracker")
    tune.add_argument("--key", help="the servers' key")
    tune.add_argument("--trials", type=trials, required=True, metavar="N", help="candidates of each kernel")
    tune.add_argument(
        "-o", "--out", required=True, metavar="DIR", help="where records go, and those of before are kept"
    )
    tune.add_argument("--seed", type=seed, default=1, metavar="N", help="of the search, as any :seed (default: 1)")
    tune.add_argument("--only", metavar="PATTERN", help="kernels by name, such as '*matmul*'")
    tune.add_argument("--threads", type=count, metavar="N", help="of this machine that measure (default: all)")
    tune.add_argument("--stack", type=degree, metavar="auto|N", help=STACK)


def degree(text: str) -> int | None:
    """A stacking degree; None for auto."""
    return None if text == "auto" else count(text)


def whole(least: int, most: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        digits = text.isascii() and text.isdigit() and len(text) <= len(str(most))
        if not digits or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"{text} is not a whole number from {least} to {most}")
        return int(text)

    return read


count, trials, seed = whole(1, 256), whole(1, 100_000), whole(0, 2**63 - 1)


def address(text: str) -> str:
    host, _, port = text.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or not 1 <= int(port) <= 65535:
        raise argparse.ArgumentTypeError(f"{text} is not HOST:PORT")
    return text


def memory_size(text: str) -> int:
    """The bytes of a size such as 4GiB, as an option's type: ArgumentTypeError where it is none."""
    from .memory import parse_size

    try:
        return parse_size(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text} is not a size such as 512MiB or 4GiB") from None


def main(argv: Sequence[str] | None = None) -> int:
    """The exit status: 0, 1 wrong input, 2 usage, 3 environment, 4 artifact refused, 5 I/O, 70 our bug."""
    open_standard()
    options = parser().parse_args(argv)
    interrupt.watch()
    try:
        status = options.run(options)
        if sys.stdout is not None:  # it came closed
            sys.stdout.flush()
        return status
    except UserError as error:
        return show([error], options)
    except KeyboardInterrupt:
        return complain(*interrupt.said())
    except BrokenPipeError:
        discard()
        return 141
    except Exception as error:
        return complain(*interrupt.said()) if interrupt.seen() else unexpected(error, options)


def open_standard() -> None:
    """Give the descriptors 0 to 2 a place if they came closed: else the next file opened would take one of them."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number, which is this one


def discard() -> None:
    """What is still buffered for standard output has no reader, or no room: Python would complain of it as it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def unexpected(error: Exception, options: argparse.Namespace) -> int:
    """A coded error of the artifact package, a failed write, or our bug."""
    code = getattr(error, "code", None)
    if code is not None and hasattr(code, "exit"):
        as_json = options.output_format == "json" and hasattr(error, "to_json")
        return complain(json.dumps(error.to_json()) if as_json else str(error), code.exit)  # type: ignore[attr-defined]
    if os.environ.get("SEXPGPU_DEBUG") == "1":
        raise error
    if isinstance(error, OSError):
        if error.errno == errno.ENOSPC and error.filename is None:
            discard()
        return complain(f"error[E-IO-001]: {error.filename or 'output'}: {error.strerror or error}", 5)
    return complain(
        f"internal error: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        " (please report; SEXPGPU_DEBUG=1 shows the traceback)",
        EXIT_BUG,
    )


def complain(line: str, status: int) -> int:
    print(line, file=sys.stderr)
    return status


def show(errors: Sequence[UserError], options: argparse.Namespace) -> int:
    """Every error on stderr; the status of the first."""
    for error in errors:
        print(json.dumps(error.to_json()) if options.output_format == "json" else str(error), file=sys.stderr)
    if len(errors) > 1 and options.output_format == "text":
        print(f"{len(errors)} errors", file=sys.stderr)
    return errors[0].code.exit


def plan_of(path: str, report: Report, diagnostics: Sequence[str] = ()) -> Any:
    """The checked plan, or None with the faults in ``report``, in the order of the text."""
    from .phases import trace_run
    from .runfile import load

    run = load(path, report)
    plan = trace_run(run, report, diagnostics) if run and not report else None
    report.errors.sort(key=lambda e: (e.span.source.name, e.span.start) if e.span else ("", 0))
    return plan


def run_check(options: argparse.Namespace) -> int:
    report = Report()
    plan = plan_of(options.file, report)
    if report:
        return show(report.errors, options)
    out = {
        "run": plan.settings.name,
        "phases": [p.name for p in plan.phases],
        "parameters": len(plan.parameters),
        "identity": plan.identity,
    }
    if options.output_format == "json":
        print(json.dumps(out))
    else:
        print(
            f"{printable(options.file)}: ok: {out['run']}, {len(out['phases'])} phases, {out['parameters']} parameters"
        )
    return 0


def run_explain(options: argparse.Namespace) -> int:
    from .explain import data, explain
    from .stack import stacked

    report = Report()
    plan = plan_of(options.file, report)
    if report:
        return show(report.errors, options)
    if options.cost or options.target is not None:
        from .build import explain_cost, explain_lowered, rates_named

        rates = rates_named("cpu" if options.target is None else options.target, compiles=not options.cost)
        plan = stacked(plan, options.stack, rates.values())
        print((explain_cost if options.cost else explain_lowered)(plan, options), end="")
        return 0
    plan = stacked(plan, options.stack)
    print(json.dumps(data(plan)) + "\n" if options.output_format == "json" else explain(plan), end="")
    return 0


def run_build(options: argparse.Namespace) -> int:
    if options.require_tuned and options.records is None:
        return complain("error[E-CLI-001]: sexpgpu build: --require-tuned needs --records", EXIT_USAGE)
    from .build import build, find_targets, rates_of
    from .memory import room_of
    from .stack import stacked

    report = Report()
    plan = plan_of(options.file, report, options.diagnostic)
    if report:
        return show(report.errors, options)
    targets = find_targets(options.target)
    room = room_of(targets, options.memory_limit)
    built = build(stacked(plan, options.stack, rates_of(targets).values(), room), options)
    print(json.dumps(built) if options.output_format == "json" else built_text(built, options.output))
    return 0


def built_text(built: Mapping[str, Any], output: str) -> str:
    from .tuning import counts

    unscheduled = f"; no schedule rule took {', '.join(built['unscheduled'])}" if built["unscheduled"] else ""
    made = f"{built['kernels']} kernels for {' and '.join(built['targets'])}, {built['bytes']:,} bytes"
    lines = [f"{made}, {built['seconds']} s{unscheduled}", *(f"tuning: {words}" for words in counts(built["tuning"]))]
    return "\n  ".join([f"{printable(output)}: sha256:{built['hash']}", *lines])


def run_tune(options: argparse.Namespace) -> int:
    if options.tracker and not options.key:
        return complain(
            "error[E-CLI-001]: sexpgpu tune: --tracker needs --key, the key of the servers that measure", EXIT_USAGE
        )
    if options.local and options.key is not None:
        return complain(
            "error[E-CLI-001]: sexpgpu tune: --key is for --tracker, and --local asks no server", EXIT_USAGE
        )
    if options.tracker and options.threads:
        what = "--threads is for --local; a server has as many as its TVM_NUM_THREADS says"
        return complain(f"error[E-CLI-001]: sexpgpu tune: {what}", EXIT_USAGE)
    from .build import rates_named
    from .stack import stacked
    from .tune import tune

    report = Report()
    plan = plan_of(options.file, report)
    if report:
        return show(report.errors, options)
    made = tune(stacked(plan, options.stack, rates_named(options.target).values()), options)
    if options.output_format == "json":
        print(json.dumps(made))
    else:
        tuned = f", {len(made['tuned'])} of them tuned: {', '.join(made['tuned'])}" if made["tuned"] else ", none tuned"
        print(f"{printable(made['records'])}: {made['kernels']} kernels{tuned}")
    return 0


def run_inspect(options: argparse.Namespace) -> int:
    from .build import inspect

    print(inspect(options.artifact, options.output_format))
    return 0


def run_verify(options: argparse.Namespace) -> int:
    from .build import verify

    found = verify(options.artifact)
    print(
        json.dumps({"hash": found})
        if options.output_format == "json"
        else f"{printable(options.artifact)}: ok: sha256:{found}"
    )
    return 0


def run_diff(options: argparse.Namespace) -> int:
    from .build import diff

    found = diff(options.artifact, options.other)
    print(json.dumps({"difference": found}) if options.output_format == "json" else found or "the same")
    return 1 if found else 0


def run_targets(options: argparse.Namespace) -> int:
    from .build import targets
    from .targets_report import text

    rows = targets()
    print(json.dumps(rows) if options.output_format == "json" else text(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
