"""``sexpgpu``: check, explain and build run files; look into artifacts. Prints what a command raises."""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from itertools import pairwise

from surroundings import entry
from surroundings.streams import discard, standard

from ..build import interrupt
from ..language import codes
from ..language.diagnostics import UserError
from ..reports.output import complain, show, unexpected

PROGRAM = "sexpgpu"


def main(argv: Sequence[str] | None = None) -> int:
    """The exit status: 0, 1 wrong input, 2 usage, 3 environment, 4 artifact refused, 5 I/O, 70 our bug."""
    entry.enter()
    with standard():
        return _main(sys.argv[1:] if argv is None else argv)


def _main(argv: Sequence[str]) -> int:
    gc.set_threshold(50_000, 20, 20)  # a plan is many objects that live to the end: looking through them takes a tenth
    json = "--output-format=json" in argv or ("--output-format", "json") in pairwise(argv)
    try:
        import typer

        from .app import app
        from .usage import EXIT_USAGE, USAGE_ERROR, Usage, usage_of
    except ModuleNotFoundError as error:
        if error.name != "typer":
            raise
        hint = "pip install 'sexpgpu[cli]', or with what compiles: 'sexpgpu[build]'"
        what = "the command line of the builder needs the extra `cli`"
        return complain(what, codes.ENV_MISSING.exit, json, codes.ENV_MISSING.name, hint)
    try:
        interrupt.watch()
        command = typer.main.get_command(app)
        # Not command.main(), which prints errors itself and obeys a variable that asks for shell completion.
        with command.make_context(PROGRAM, [*argv]) as context:
            status = command.invoke(context)
        sys.stdout.flush()
        return status
    except typer.Exit as done:  # of --help and --version
        sys.stdout.flush()
        return done.exit_code
    except UserError as error:
        return show([error], json)
    except (USAGE_ERROR, Usage) as error:
        wrong = usage_of(error, " ".join([PROGRAM, *(word for word in argv[:1] if word in command.commands)]))
        return complain(wrong.what, EXIT_USAGE, json, "E-CLI-001", wrong.hint, wrong.command)
    except KeyboardInterrupt:
        return complain(*interrupt.said(), json)
    except BrokenPipeError:
        discard(sys.stdout)
        return 141
    except Exception as error:
        return complain(*interrupt.said(), json) if interrupt.seen(error) else unexpected(error, json)


if __name__ == "__main__":
    sys.exit(main())
