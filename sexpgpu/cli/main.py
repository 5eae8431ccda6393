"""``sexpgpu``: check, explain and build run files; look into artifacts. Prints what a command raises."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from itertools import pairwise

from surroundings import entry
from surroundings.streams import discard, standard

from ..build import interrupt
from ..language.diagnostics import UserError
from ..reports.output import as_json, complain, show, unexpected
from . import paths
from .commands import COMMANDS
from .options import EXIT_USAGE, Usage, read


def main(argv: Sequence[str] | None = None) -> int:
    """The exit status: 0, 1 wrong input, 2 usage, 3 environment, 4 artifact refused, 5 I/O, 70 our bug."""
    entry.enter()
    with standard():
        return _main(sys.argv[1:] if argv is None else argv)


def _main(argv: Sequence[str]) -> int:
    wanted = "--output-format=json" in argv or ("--output-format", "json") in pairwise(argv)
    options = argparse.Namespace(output_format="json" if wanted else "text")  # until they are read
    try:
        options = read(argv)
        interrupt.watch()
        paths.settle(options)
        status = COMMANDS[options.command](options) if options.command else 0
        sys.stdout.flush()
        return status
    except UserError as error:
        return show([error], options)
    except Usage as wrong:
        return complain(wrong.what, EXIT_USAGE, as_json(options), "E-CLI-001", wrong.hint, wrong.command)
    except KeyboardInterrupt:
        return complain(*interrupt.said(), as_json(options))
    except BrokenPipeError:
        discard(sys.stdout)
        return 141
    except Exception as error:
        return complain(*interrupt.said(), as_json(options)) if interrupt.seen(error) else unexpected(error, options)


if __name__ == "__main__":
    sys.exit(main())
