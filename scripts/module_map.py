"""The map of all modules in docs/architecture.md: a line each, the first sentence of its docstring."""

import ast
import re
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("sexpgpu", "lowering", "schedules", "artifacts", "surroundings")
BEGIN, END = "<!-- modules: written by scripts/generate_docs -->\n", "<!-- end of modules -->\n"


def first_sentence(path):
    """The docstring's first sentence, on one line."""
    text = " ".join((ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").split())
    return re.split(r"(?<=[a-z0-9)`'\"]\.) (?=[A-Za-z`*(])", text)[0].replace("|", "\\|")


def rooms(package):
    """Every folder of ``package`` with modules, outer ones first."""
    folders = {path.parent for path in (ROOT / package).rglob("*.py")}
    return sorted(folders, key=lambda folder: folder.parts)


def module_map():
    """Package by package and room by room, the text between BEGIN and END."""
    lines = []
    for package in PACKAGES:
        for room in rooms(package):
            name = room.relative_to(ROOT).as_posix()
            modules = sorted(path for path in room.glob("*.py") if path.name != "__init__.py")
            about = textwrap.wrap(first_sentence(room / "__init__.py"), 100, break_on_hyphens=False)
            lines += [f"{'###' if room.name == package else '####'} `{name}`", "", *about]
            if modules:
                lines += ["", "| module | what it does |", "|---|---|"]
                lines += [f"| `{path.name}` | {first_sentence(path)} |" for path in modules]
            lines.append("")
    return "\n".join(lines)


def page():
    """docs/architecture.md with the map of today."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    return f"{before}{BEGIN}\n{module_map()}{END}{after}"
