"""What a command line says of a build or of tuning; the meaning of each field is its option's help (cli/app.py)."""

from __future__ import annotations

from attrs import frozen

SHIPPED = "shipped"  # as --records: the records that come with the package


@frozen(kw_only=True)
class CompileOptions:
    """Of everything that compiles. ``stack`` and ``jobs``: None chooses."""

    target: str
    stack: int | None = None
    jobs: int | None = None
    graphs: str = "auto"
    strict_schedules: bool = False
    records: str | None = None
    require_tuned: bool = False
    dump: str | None = None


@frozen(kw_only=True)
class BuildOptions(CompileOptions):
    """``memory_limit``: bytes."""

    file: str
    output: str
    force: bool = False
    memory_limit: int | None = None
    runtime: str | None = None


@frozen(kw_only=True)
class TuneOptions:
    """``tracker``: HOST:PORT of the servers that measure, and their ``key``; None measures here, on ``threads``, or as
    many as there are cores."""

    target: str
    out: str
    trials: int
    seed: int
    tracker: str | None = None
    key: str = ""
    only: str | None = None
    threads: int | None = None
    json: bool = False
