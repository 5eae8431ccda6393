"""The command-line options of ``sexpgpu-run``, parsed strictly; each error is one line with a code."""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Sequence
from typing import Any, NoReturn

from attrs import frozen

from . import __version__
from .base.errors import CLI_CONFLICT, CLI_USAGE, CLI_VALUE, RunError, shown

EPILOG = """\
exit status: 0 done, 1 wrong input, 2 wrong usage, 3 the machine cannot run it, 4 artifact or checkpoint refused,
5 reading or writing failed, 6 the run gave up (not finite), 70 our bug, 128+n stopped by signal n, checkpoint saved.
An artifact holds native code: run only those you trust."""


@frozen
class Options:
    """``resume`` is "", "must" or "auto"."""

    artifact: str
    out: str
    data: str
    steps: int | None
    threads: int | None
    target: str | None
    device: str | None
    graphs: bool
    resume: str
    fork: str | None
    strict: bool
    keep: int
    diagnostics: tuple[str, ...]
    digest: str | None
    quiet: bool
    verbose: bool
    as_json: bool


class Parser(argparse.ArgumentParser):
    """argparse whose faults are RunErrors. No value may be empty: a variable that is not set stands behind one."""

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        if not arg_string:
            name = action.option_strings[-1] if action.option_strings else action.metavar
            raise RunError(CLI_VALUE, f"{name} is empty", hint="give it a value, or leave it out")
        return super()._get_value(action, arg_string)  # type: ignore[misc]

    def error(self, message: str) -> NoReturn:
        code = CLI_CONFLICT if "not allowed with" in message else CLI_USAGE
        raise RunError(code, message, hint=self.format_usage().strip().replace("\n", " ") if code is CLI_USAGE else "")


def parser() -> Parser:
    """The command line of ``sexpgpu-run``; what it refuses is a RunError."""
    p = Parser(
        "sexpgpu-run",
        description="Train by an artifact of sexpgpu build.",
        allow_abbrev=False,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="sexpgpu-run ARTIFACT --out DIR [options]",
    )
    p.add_argument("artifact", metavar="ARTIFACT", help="the file made by sexpgpu build")
    p.add_argument("-o", "--out", metavar="DIR", required=True, help="directory of checkpoints and metrics.jsonl")
    p.add_argument("--data", metavar="DIR", help="where the sources of the loaders lie (default: here)")
    _place_options(p)
    start = p.add_mutually_exclusive_group()
    start.add_argument(
        "--resume",
        action="store_true",
        help="continue from the newest checkpoint in --out; --resume=auto starts anew when there is none",
    )
    start.add_argument("--resume-auto", action="store_true", help=argparse.SUPPRESS)
    start.add_argument("--fork", metavar="DIR", help="a new run that starts from the weights of the run in DIR")
    p.add_argument("--strict", action="store_true", help="do not fall back from a damaged checkpoint to an older one")
    p.add_argument("--keep", metavar="N", default="3", help="checkpoints to keep, 2 or more (default 3)")
    p.add_argument(
        "--diagnostic", metavar="NAME", action="append", default=[], help="print this tensor; may be repeated"
    )
    p.add_argument("--require-digest", metavar="sha256:HEX", help="run only the artifact of this hash")
    loud = p.add_mutually_exclusive_group()
    loud.add_argument("-q", "--quiet", action="store_true", help="say only warnings, errors and diagnostics")
    loud.add_argument("-v", "--verbose", action="store_true", help="say more")
    p.add_argument("--output-format", choices=("text", "json"), default="text")
    p.add_argument("--version", action="version", version=f"sexpgpu-run {__version__}")
    return p


def _place_options(p: Parser) -> None:
    """How far a run goes, and on what."""
    p.add_argument("--steps", metavar="N", help="finish after N steps (default: as the run file says)")
    p.add_argument("--threads", metavar="N", help="worker threads (default: the cores it may use); changes no result")
    p.add_argument(
        "--target", metavar="NAME", help="the library to run, or a GPU that it was built for (default: the best one)"
    )
    p.add_argument(
        "--device",
        metavar="cpu|cuda[:N]",
        help="run there alone (default: the first visible GPU if the artifact has kernels for it, else the CPU)",
    )
    p.add_argument(
        "--graphs",
        choices=("auto", "off"),
        default="auto",
        help="capture what a GPU repeats as CUDA graphs, as the artifact was built (auto), or never; changes no result",
    )


def parse(argv: Sequence[str]) -> Options:
    """The options of ``argv``; RunError E-CLI-00x. SystemExit after --help and --version."""
    p = parser()
    arguments, extra = p.parse_known_args(_plain_resume(argv))
    if extra:
        _unknown(p, extra[0])
    return Options(
        artifact=arguments.artifact,
        out=arguments.out,
        data=arguments.data or "",
        steps=None if arguments.steps is None else integer("--steps", arguments.steps, 1, 2**53),
        threads=None if arguments.threads is None else integer("--threads", arguments.threads, 1, 1024),
        target=arguments.target,
        device=None if arguments.device is None else _device(arguments.device),
        graphs=arguments.graphs == "auto",
        resume="auto" if arguments.resume_auto else "must" if arguments.resume else "",
        fork=arguments.fork,
        strict=arguments.strict,
        keep=integer("--keep", arguments.keep, 2, 10**6),
        diagnostics=tuple(dict.fromkeys(arguments.diagnostic)),
        digest=None if arguments.require_digest is None else _digest(arguments.require_digest),
        quiet=arguments.quiet,
        verbose=arguments.verbose,
        as_json=arguments.output_format == "json",
    )


def _plain_resume(argv: Sequence[str]) -> list[str]:
    """argparse has no option with a value only after ``=``: --resume=auto becomes a flag of its own."""
    end = list(argv).index("--") if "--" in argv else len(argv)
    out = []
    for word in argv[:end]:
        if word.startswith("--resume=") and word != "--resume=auto":
            raise RunError(CLI_VALUE, f"--resume is {shown(word[9:])}; it takes nothing, or auto")
        out.append("--resume-auto" if word == "--resume=auto" else word)
    return [*out, *argv[end:]]


def _unknown(p: Parser, word: str) -> NoReturn:
    flag = word.split("=")[0]
    option_names = [name for action in p._actions for name in action.option_strings if action.help != argparse.SUPPRESS]
    near = difflib.get_close_matches(flag, option_names, 1)
    hint = f"did you mean {near[0]}?" if near else "see sexpgpu-run --help"
    kind = "option" if word.startswith("-") else "argument"
    raise RunError(CLI_USAGE, f"there is no {kind} {shown(flag) or 'that is empty'}", hint=hint)


def integer(option: str, text: str, low: int, high: int) -> int:
    """The number that ``text`` writes in ASCII digits; E-CLI-002 with the value and the range."""
    if not re.fullmatch(r"[0-9]{1,19}", text, re.ASCII) or not low <= int(text) <= high:
        raise RunError(CLI_VALUE, f"{option} is {shown(text)}; it should be a whole number from {low} to {high}")
    return int(text)


def _device(text: str) -> str:
    if not re.fullmatch(r"cpu|cuda(:[0-9]{1,3})?", text, re.ASCII):
        raise RunError(CLI_VALUE, f"--device is {shown(text)}; it should be cpu, cuda, or cuda: and a number")
    return text


def _digest(text: str) -> str:
    if not re.fullmatch(r"sha256:[0-9a-f]{64}", text):
        raise RunError(CLI_VALUE, f"--require-digest is {shown(text)}; it should be sha256: and 64 hex digits")
    return text[7:]
