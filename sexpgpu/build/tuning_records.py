"""What a build makes of tuning records. They are looked for by a kernel's content, so a run that has changed finds
those of the kernels that it still has; docs/tuning.md says more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import evolve, frozen

from ..language import codes
from ..language.diagnostics import UserError
from .options import SHIPPED, CompileOptions

RULE = "tuned: "  # how the failure of a record begins, among those of rules


@frozen
class Use:
    """What a build makes of the records of one library: a CPU target's, or that of all GPUs of a level.

    records: those of the run's kernels, by key
    tuned:   kernels that a record schedules; settled: those that a record leaves to the rules; missing: those without
    reason:  why there are no records at all
    text:    the file of those that are used, "" for none
    """

    records: Mapping[str, Any]
    tuned: int
    settled: int
    missing: tuple[str, ...]
    reason: str
    text: str


def found(names: Sequence[str], options: CompileOptions) -> dict[str, Any]:
    """Library -> its Records of ``--records``; nothing without it. E-TUNE-001."""
    if options.records is None:
        return {}
    from schedules.tuning import records as replay

    folder = replay.SHIPPED if options.records == SHIPPED else Path(options.records)
    if not any(folder.glob(f"*/{replay.FILE}")):
        what = f"there is no folder {folder}" if not folder.is_dir() else f"{folder} has no TARGET/{replay.FILE} in it"
        hint = f"give the folder that was --out of sexpgpu tune, or {SHIPPED}"
        raise UserError(codes.TUNE_RECORDS, None, what, hint=hint)
    try:
        return {name: replay.load(folder, name) for name in names}
    except replay.RecordsFault as fault:
        raise UserError(codes.TUNE_RECORDS, None, str(fault)) from None


def matched(found: Mapping[str, Any], programs: Mapping[str, Any], required: bool) -> dict[str, Use]:
    """Library -> the records of ``programs``. E-TUNE-002 where all kernels must have one and some have none."""
    if not found:
        return {}
    from schedules.tuning import records as replay

    keys = {name: replay.key_of(func) for name, func in programs.items()}
    out = {}
    for name_of_set, of in found.items():
        missing = tuple(sorted(name for name, key in keys.items() if key not in of.by_key))
        if missing and required:
            why = f" ({of.reason})" if of.reason else ""
            what = f"{len(missing)} of {len(keys)} kernels have no record for {name_of_set}{why}: {', '.join(missing)}"
            raise UserError(codes.TUNE_MISSING, None, what, hint="sexpgpu tune")
        mine = {key: of.by_key[key] for key in keys.values() if key in of.by_key}
        tuned = sum(mine[key].trace is not None for key in keys.values() if key in mine)
        text = replay.text(of.name, mine.values()) if mine else ""
        out[name_of_set] = Use(mine, tuned, len(keys) - len(missing) - tuned, missing, of.reason, text)
    return out


def jobs(parts: Sequence[str], names: Sequence[str], uses: Mapping[str, Use], dump: str | None) -> list[Any]:
    """The arguments of ``compile.compile_part`` for each part of each library."""
    records = {name: use.records for name, use in uses.items()}
    return [(part, name, dump and f"{dump}/{name}", records.get(name)) for name in names for part in parts]


def replaying(target: Any, records: Mapping[str, Any] | None) -> Any:
    """The schedules' ``target`` with ``records`` before its rules."""
    if not records:
        return target
    from schedules.tuning.records import TunedRule

    return evolve(target, rules=(TunedRule(records), *target.rules))


def check_fit(uses: Mapping[str, Use], compiled: Mapping[str, Any]) -> None:
    """E-TUNE-001 for a record whose trace is not of the program that it names."""
    for target in uses:
        for kernel in compiled[target].kernels:
            broken = [fault.removeprefix(RULE) for fault in kernel.failures if fault.startswith(RULE)]
            if broken:
                what = f"the record of {kernel.kernel} for {target} does not fit it: {broken[0]}"
                raise UserError(codes.TUNE_RECORDS, None, what)


def members(uses: Mapping[str, Use]) -> dict[str, bytes]:
    """``records/SET/records.jsonl`` -> the records that were used: a build can replay them from an artifact."""
    return {f"records/{name}/records.jsonl": use.text.encode() for name, use in uses.items() if use.text}


def lines(uses: Mapping[str, Use]) -> list[str]:
    """The report's lines: how many kernels of each target are scheduled by what."""
    out = []
    for use, words in zip(uses.values(), counts(data(uses)), strict=True):
        out.append(f"tuning       {words}")
        out += [f"             no record: {name}" for name in use.missing[:MOST]]
        out += [f"             and {len(use.missing) - MOST} more"] if len(use.missing) > MOST else []
    return out


def counts(found: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """For each target of ``data``, how many kernels are scheduled by what, and why there are no records at all."""
    return [
        f"{target}: {of['tuned']} kernels by their records, {of['settled']} left to the rules by theirs, "
        f"{len(of['missing'])} have none" + (f" ({of['reason']})" if of["reason"] else "")
        for target, of in found.items()
    ]


MOST = 8  # kernels without a record that the report names


def data(uses: Mapping[str, Use]) -> dict[str, Any]:
    """The same for ``--output-format json``."""
    return {
        target: {"tuned": use.tuned, "settled": use.settled, "missing": list(use.missing), "reason": use.reason}
        for target, use in uses.items()
    }
