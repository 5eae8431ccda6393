"""What is true of an operator stands in its row: other modules ask the row, and do not list operators by name."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from sexpgpu.ops import OPS

NAMES = {name for name in OPS if re.match("[a-z]", name)}
# Modules that may name operators, and which ones. A rewrite is of particular operators; a gradient's or a program's own
# operator may be looked for. A name that is added here wants a reason why it is no column of the table.
ALLOWED = {
    # Algebraic identities, each of particular operators.
    "sexpgpu/graph/simplify.py": None,
    "sexpgpu/graph/table_products.py": {"gather"},
    "sexpgpu/phases/index_ranges.py": {"where"},  # chooses: only its condition tells whether a side can be out of range
    "sexpgpu/planning/fusion_model.py": {"sum"},  # the one reduction of the fused optimizer step
    "lowering/emit.py": {"reshape"},  # of rows that are already flat
    "lowering/kernels/split_concat.py": {"slice"},
    # Names of scalar functions and of programs, some of which are called as the operators are.
    "lowering/math/elementary.py": None,
    "lowering/kernels/relax_wrappers.py": None,
}


def named(tree: ast.AST) -> set[str]:
    """Operator names that are compared with an attribute ``op``, and those in displays and keys of dictionaries: two or
    more, as one may be another's word (``slice``, ``max``)."""
    listed, compared = set(), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and "op" in {getattr(p, "attr", "") for p in (node.left, *node.comparators)}:
            compared.update(names(node.left, *node.comparators))
        elif isinstance(node, ast.Tuple | ast.Set | ast.List):
            listed.update(names(*node.elts))
        elif isinstance(node, ast.Dict):
            listed.update(names(*node.keys))
    return compared | (listed if len(listed) > 1 else set())


def names(*parts: ast.AST | None) -> Iterator[str]:
    yield from (p.value for p in parts if isinstance(p, ast.Constant) and p.value in NAMES)


def test_operators_are_named_in_their_table_alone() -> None:
    root = Path(__file__).parents[3]
    files = [f for package in ("sexpgpu", "lowering") for f in sorted((root / package).rglob("*.py"))]
    found = {f.relative_to(root).as_posix(): named(ast.parse(f.read_text())) for f in files}
    outside = {path: listed for path, listed in found.items() if listed and not path.startswith("sexpgpu/ops/")}
    assert outside == {path: outside.get(path) if listed is None else listed for path, listed in ALLOWED.items()}


def test_a_name_is_found_in_a_table_a_key_and_a_comparison() -> None:
    text = 'A = ("exp", x)\nB = {"log": 1}\nv.op == "sum"\nf("tanh")\nv.name == "cos"'
    assert named(ast.parse(text)) == {"exp", "log", "sum"}
    assert named(ast.parse('v.op in ("sin", "cos")')) == {"sin", "cos"}
    assert not named(ast.parse('f(("max", "other"))'))
