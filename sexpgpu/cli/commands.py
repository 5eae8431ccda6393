"""What each command does. Thin: each imports what it needs, so that no command loads more."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..language.diagnostics import Report, printable
from ..reports.output import as_json, line, show, tell
from .options import Usage


def plan_of(path: str, report: Report, diagnostics: Sequence[str] = ()) -> Any:
    """The checked plan, or None with the faults in ``report``, in the order of the text."""
    from ..language.runfile import load
    from ..phases.trace_run import trace_run

    run = load(path, report)
    plan = trace_run(run, report, diagnostics) if run else None
    report.sort()
    return plan


def run_check(options: argparse.Namespace) -> int:
    report = Report()
    plan = plan_of(options.file, report)
    if report:
        return show(report.errors, options)
    tell(report.warnings, options)
    out = {
        "run": plan.settings.name,
        "phases": [p.name for p in plan.phases],
        "parameters": len(plan.parameters),
        "identity": plan.identity,
    }
    if as_json(options):
        print(line(out))
    else:
        print(
            f"{printable(options.file)}: ok: {out['run']}, {len(out['phases'])} phases, {out['parameters']} parameters"
        )
    return 0


def run_explain(options: argparse.Namespace) -> int:
    from ..planning.microbatch_stacking import stacked
    from ..reports.explain import data, explain

    report = Report()
    plan = plan_of(options.file, report)
    if report:
        return show(report.errors, options)
    tell(report.warnings, options)
    if options.cost or options.target is not None:
        from ..build.targets import rates_named
        from .explain_target import explain_cost, explain_lowered

        rates = rates_named("cpu" if options.target is None else options.target, compiles=not options.cost)
        plan = stacked(plan, options.stack, rates.values())
        print((explain_cost if options.cost else explain_lowered)(plan, options), end="")
        return 0
    plan = stacked(plan, options.stack)
    print(line(data(plan)) + "\n" if as_json(options) else explain(plan), end="")
    return 0


def run_build(options: argparse.Namespace) -> int:
    if options.require_tuned and options.records is None:
        raise Usage("--require-tuned needs --records", "sexpgpu build", "give the folder that tune -o made")
    from ..build.driver import build
    from ..build.targets import find_targets, rates_of
    from ..planning.memory_plan import room_of
    from ..planning.microbatch_stacking import stacked

    report = Report()
    plan = plan_of(options.file, report, options.diagnostic)
    if report:
        return show(report.errors, options)
    tell(report.warnings, options)
    targets = find_targets(options.target)
    room = room_of(targets, options.memory_limit)
    built = build(stacked(plan, options.stack, rates_of(targets).values(), room), options)
    print(line(built) if as_json(options) else built_text(built, options.output))
    return 0


def built_text(built: Mapping[str, Any], output: str) -> str:
    from ..build.tuning_records import counts

    unscheduled = f"; no schedule rule took {', '.join(built['unscheduled'])}" if built["unscheduled"] else ""
    made = f"{built['kernels']} kernels for {' and '.join(built['targets'])}, {built['bytes']:,} bytes"
    lines = [f"{made}, {built['seconds']} s{unscheduled}", *(f"tuning: {words}" for words in counts(built["tuning"]))]
    return "\n  ".join([f"{printable(output)}: sha256:{built['hash']}", *lines])


def run_tune(options: argparse.Namespace) -> int:
    said = "sexpgpu tune"
    if options.tracker and not options.key:
        raise Usage("--tracker needs --key, the key of the servers that measure", said, "give both")
    if options.local and options.key is not None:
        raise Usage("--key is for --tracker, and --local asks no server", said, "leave --key out")
    if options.tracker and options.threads:
        what = "--threads is for --local; a server has as many as its TVM_NUM_THREADS says"
        raise Usage(what, said, "leave --threads out")
    from ..build.targets import rates_named
    from ..build.tuner import tune
    from ..planning.microbatch_stacking import stacked

    report = Report()
    plan = plan_of(options.file, report)
    if report:
        return show(report.errors, options)
    made = tune(stacked(plan, options.stack, rates_named(options.target).values()), options)
    if as_json(options):
        print(line(made))
    else:
        tuned = f", {len(made['tuned'])} of them tuned: {', '.join(made['tuned'])}" if made["tuned"] else ", none tuned"
        print(f"{printable(made['records'])}: {made['kernels']} kernels{tuned}")
    return 0


def run_inspect(options: argparse.Namespace) -> int:
    from ..build.driver import inspect

    print(inspect(options.artifact, options.output_format))
    return 0


def run_verify(options: argparse.Namespace) -> int:
    from ..build.driver import verify

    found = verify(options.artifact)
    print(line({"hash": found}) if as_json(options) else f"{printable(options.artifact)}: ok: sha256:{found}")
    return 0


def run_diff(options: argparse.Namespace) -> int:
    from ..build.driver import diff

    found = diff(options.artifact, options.other)
    print(line({"difference": found}) if as_json(options) else found or "the same")
    return 1 if found else 0


def run_targets(options: argparse.Namespace) -> int:
    from ..build.targets import targets
    from ..reports.targets import text

    rows = targets()
    print(line(rows) if as_json(options) else text(rows))
    return 0


COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {
    "check": run_check,
    "explain": run_explain,
    "build": run_build,
    "tune": run_tune,
    "inspect": run_inspect,
    "verify": run_verify,
    "diff": run_diff,
    "targets": run_targets,
}
