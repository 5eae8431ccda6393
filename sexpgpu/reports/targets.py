"""``sexpgpu targets``: what each target's machine must have, and what a build for it needs to be installed. And what is
said of a name that is no target's."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any


def row(target: Any, lacking: str | None) -> dict[str, Any]:
    """One of schedules.TARGETS. ``lacking``: what of the extra ``cuda`` is not installed.

    needs:   what the machine must have, in the words of /proc/cpuinfo, or the GPU's compute capability
    memory:  bytes of the card's memory, where the name says it
    library: which of an artifact's libraries it uses
    extras:  of the package, for a build; ``lacking``: what of them is not installed, None where all is
    """
    of_machine = {"machine": target.machine, "needs": list(target.cpu_flags)}
    if target.gpu is None:
        return {**of_machine, "library": target.name, "extras": ["build"], "lacking": None}
    of_machine["needs"] = ["compute capability {}.{}".format(*divmod(target.gpu.capability, 10))]
    memory = {"memory": target.gpu.memory} if target.gpu.memory else {}
    return {**of_machine, **memory, "library": target.gpu.level, "extras": ["cuda"], "lacking": lacking}


def default_row(targets: Sequence[Any]) -> dict[str, Any]:
    """``cpu``: those of this architecture."""
    return {"machine": targets[0].machine, "targets": [t.name for t in targets], "extras": ["build"], "lacking": None}


def text(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """``sexpgpu targets``: a line for each name of ``rows``."""
    return "\n".join(f"{name:16} {words(of)}" for name, of in rows.items())


def words(of: Mapping[str, Any]) -> str:
    if "targets" in of:
        return f"{' and '.join(of['targets'])} in one artifact: the default"
    memory = f", {of['memory'] // 2**30} GiB" if "memory" in of else ""
    extras = f"; sexpgpu[{','.join(of['extras'])}] builds for it" if of["extras"] != ["build"] else ""
    lacking = f"; not installed: {of['lacking']}" if of["lacking"] else ""
    return f"{of['machine']}, needs {' '.join(of['needs'])}{memory}{extras}{lacking}"


def unknown(name: str, known: Sequence[str]) -> tuple[str, str]:
    """What is wrong with a name of --target, and the target that was meant, or all there are."""
    if not name:
        return "--target has an empty name in it", "a list is names with commas between, such as cpu,nvidia-h100"
    plain = name.strip().lower()
    meant = [k for k in known if k == plain or k.endswith(f"-{plain}")]
    # No name of another card or instruction set, which one other character makes: a letter too many or too few.
    meant = meant or difflib.get_close_matches(plain, known, 1, cutoff=0.93)
    shown = name if name == name.strip() else f'"{name}", with a space in it'
    hint = f"did you mean {meant[0]}? sexpgpu targets lists them all" if meant else f"one of {' '.join(known)}"
    return f"there is no target {shown}", hint
