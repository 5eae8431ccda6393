"""The command line's grammar: commands, their options, and what an option's value may be."""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from .. import __version__

EXIT_USAGE = 2
RUN_FILE, ARTIFACT = "the run file, such as run.sx", "a file made by sexpgpu build"
STACK = "microbatches in one call; auto, the default: what costs least, where the run allows it"
EXITS = """\
exit status: 0 done, 1 wrong input (or a difference that diff found), 2 wrong usage, 3 this machine or its software
cannot do it, 4 artifact refused, 5 reading or writing failed, 70 our bug, 128+n stopped by signal n.
sexpgpu-run, on the machine that trains, runs what build makes."""


class Usage(Exception):
    """The command line is wrong: ``what`` of it, in which ``command``, and what to do."""

    def __init__(self, what: str, command: str, hint: str) -> None:
        super().__init__(what)
        self.what, self.command, self.hint = what, command, hint


class Parser(argparse.ArgumentParser):
    """Usage for what it refuses, with the nearest flag or command, or else with where to look. No value may be empty: a
    variable that is not set stands behind one."""

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        if not arg_string and action.nargs != argparse.PARSER:  # whose words are the command's own
            raise argparse.ArgumentError(action, "it is empty; give it a value, or leave it out")
        return super()._get_value(action, arg_string)  # type: ignore[misc]

    def error(self, message: str) -> NoReturn:
        hint = f"see {self.prog} --help"
        if "unrecognized arguments: " in message:
            first, *_ = message.rpartition(": ")[2].split() or [""]
            message = message if first else f"{message}one that is empty"
            close = difflib.get_close_matches(first, self.words(), 1)
            hint = f"did you mean {close[0]}?" if close else hint
        elif "invalid choice: 'run'" in message:
            hint = "sexpgpu-run trains from an artifact"
        elif "invalid choice: " in message:
            given, *choices = re.findall(r"'([^']*)'", message)
            close = difflib.get_close_matches(given, choices, 1)
            hint = f"did you mean {close[0]}?" if close else hint
        raise Usage(message, self.prog, hint)

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

    def command(name: str, text: str) -> Parser:
        made = commands.add_parser(name, help=text, description=text, allow_abbrev=False)
        made.add_argument(
            "--output-format",
            choices=("text", "json"),
            default="text",
            help="json: results and errors, an object a line",
        )
        return made

    check = command("check", "Report every fault of a run file; needs no compiler.")
    check.add_argument("file", help=RUN_FILE)
    explain_options(command("explain", "Print a run's phases and their graphs, or what a compiler makes of them."))
    build_options(command("build", "Compile a run file into one artifact."))
    tune_options(command("tune", "Measure schedules of a run's kernels, for builds to replay."))
    inspect = command("inspect", "Print what an artifact holds; loads no code of it.")
    inspect.add_argument("artifact", help=ARTIFACT)
    verify = command("verify", "Check every byte of an artifact against its manifest.")
    verify.add_argument("artifact", help=ARTIFACT)
    diff = command("diff", "Name the first difference of two artifacts.")
    diff.add_argument("artifact", help=ARTIFACT)
    diff.add_argument("other", help="another one")
    command("targets", "List the targets of --target.")
    return top


def explain_options(explain: Parser) -> None:
    explain.add_argument("file", help=RUN_FILE)
    explain.add_argument("--stack", type=degree, metavar="auto|N", help=STACK)
    explain.add_argument("--cost", action="store_true", help="print what the cost model expects of each phase")
    explain.add_argument(
        "--target", metavar="T[,T]", help="compile, and print what a build would report; see --cost too"
    )
    explain.add_argument("--jobs", type=count, metavar="N", help="processes that compile (default: a core each)")
    explain.set_defaults(dump=None, graphs="auto", strict_schedules=False, records=None, require_tuned=False)


def build_options(build: Parser) -> None:
    build.add_argument("file", help=RUN_FILE)
    build.add_argument("-o", "--out", "--output", dest="output", required=True, metavar="RUN.tar", help="the artifact")
    build.add_argument(
        "--target", default="cpu", metavar="T[,T]", help="see sexpgpu targets; default: cpu, all of this architecture"
    )
    build.add_argument("--stack", type=degree, metavar="auto|N", help=STACK)
    build.add_argument("--jobs", type=count, metavar="N", help="processes that compile (default: a core each)")
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
    tune.add_argument("--threads", type=count, metavar="N", help="that measure (default: the cores it may use)")
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
    from ..planning.memory_plan import parse_size

    try:
        return parse_size(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text} is not a size such as 512MiB or 4GiB") from None


def read(argv: Sequence[str]) -> argparse.Namespace:
    """The options, ``command`` among them, which is None where --help or --version has been printed; Usage."""
    try:
        return parser().parse_args(argv)
    except SystemExit:
        return argparse.Namespace(output_format="text", command=None)
