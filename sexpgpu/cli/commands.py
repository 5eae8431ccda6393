"""What each command does. Thin: each imports what it needs, so that no command loads more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..build.options import BuildOptions, CompileOptions, TuneOptions
from ..language.diagnostics import Report, printable
from ..reports.output import line, show, tell

Values = Mapping[str, str]  # of -D, by name


def plan_of(path: str, report: Report, diagnostics: Sequence[str] = (), values: Values | None = None) -> Any:
    """The checked plan, with the ``values`` of ``-D``; None with the faults in ``report``, in the order of the text."""
    from ..language.runfile import load
    from ..phases.trace_run import trace_run

    run = load(path, report, values)
    plan = trace_run(run, report, diagnostics) if run else None
    report.sort()
    return plan


def run_check(file: str, values: Values, json: bool) -> int:
    report = Report()
    plan = plan_of(file, report, values=values)
    if report:
        return show(report.errors, json)
    tell(report.warnings, json)
    out = {
        "run": plan.settings.name,
        "phases": [p.name for p in plan.phases],
        "parameters": len(plan.parameters),
        "identity": plan.identity,
    }
    if json:
        print(line(out))
    else:
        print(f"{printable(file)}: ok: {out['run']}, {len(out['phases'])} phases, {out['parameters']} parameters")
    return 0


def run_explain(
    file: str, values: Values, cost: bool, options: CompileOptions | None, stack: int | None, json: bool
) -> int:
    """``options``: with a target, None without."""
    from ..planning.microbatch_stacking import stacked
    from ..reports.explain import data, explain

    report = Report()
    plan = plan_of(file, report, values=values)
    if report:
        return show(report.errors, json)
    tell(report.warnings, json)
    if cost or options:
        from ..build.targets import rates_named
        from .explain_target import explain_cost, explain_lowered

        rates = rates_named(options.target if options else "cpu", compiles=not cost)
        plan = stacked(plan, stack, rates.values())
        print(explain_lowered(plan, options, json) if options and not cost else explain_cost(plan, rates, json), end="")
        return 0
    plan = stacked(plan, stack)
    print(line(data(plan)) + "\n" if json else explain(plan), end="")
    return 0


def run_build(options: BuildOptions, values: Values, diagnostics: Sequence[str], json: bool) -> int:
    from ..build.driver import build
    from ..build.targets import find_targets, rates_of
    from ..planning.memory_plan import room_of
    from ..planning.microbatch_stacking import stacked

    report = Report()
    plan = plan_of(options.file, report, diagnostics, values)
    if report:
        return show(report.errors, json)
    tell(report.warnings, json)
    targets = find_targets(options.target)
    room = room_of(targets, options.memory_limit)
    built = build(stacked(plan, options.stack, rates_of(targets).values(), room), options)
    print(line(built) if json else built_text(built, options.output))
    return 0


def built_text(built: Mapping[str, Any], output: str) -> str:
    from ..build.tuning_records import counts

    unscheduled = f"; no schedule rule took {', '.join(built['unscheduled'])}" if built["unscheduled"] else ""
    made = f"{built['kernels']} kernels for {' and '.join(built['targets'])}, {built['bytes']:,} bytes"
    lines = [f"{made}, {built['seconds']} s{unscheduled}", *(f"tuning: {words}" for words in counts(built["tuning"]))]
    return "\n  ".join([f"{printable(output)}: sha256:{built['hash']}", *lines])


def run_tune(file: str, values: Values, stack: int | None, options: TuneOptions) -> int:
    from ..build.targets import rates_named
    from ..build.tuner import tune
    from ..planning.microbatch_stacking import stacked

    report = Report()
    plan = plan_of(file, report, values=values)
    if report:
        return show(report.errors, options.json)
    made = tune(stacked(plan, stack, rates_named(options.target).values()), options)
    if options.json:
        print(line(made))
    else:
        tuned = f", {len(made['tuned'])} of them tuned: {', '.join(made['tuned'])}" if made["tuned"] else ", none tuned"
        print(f"{printable(made['records'])}: {made['kernels']} kernels{tuned}")
    return 0


def run_inspect(artifact: str, output_format: str) -> int:
    from ..build.driver import inspect

    print(inspect(artifact, output_format))
    return 0


def run_verify(artifact: str, json: bool) -> int:
    from ..build.driver import verify

    digest = verify(artifact)
    print(line({"hash": digest}) if json else f"{printable(artifact)}: ok: sha256:{digest}")
    return 0


def run_diff(artifact: str, other: str, json: bool) -> int:
    from ..build.driver import diff

    difference = diff(artifact, other)
    print(line({"difference": difference}) if json else difference or "the same")
    return 1 if difference else 0


def run_targets(json: bool) -> int:
    from ..build.targets import targets
    from ..reports.targets import text

    rows = targets()
    print(line(rows) if json else text(rows))
    return 0


def run_runs(folders: Sequence[str], metrics: Sequence[str], output_format: str) -> int:
    from ..reports.runs import chosen, csv_table, data, read_runs, text_table

    runs = read_runs(folders)
    names = chosen(runs, metrics)
    if output_format == "json":
        for row in data(runs):
            print(line(row))
    else:
        print((csv_table if output_format == "csv" else text_table)(runs, names))
    return 0
