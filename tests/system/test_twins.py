"""Twins: what stands once in each of two packages, since neither may import the other (docs/architecture.md).

Definitions and constants are read from the source, so that no test here needs a compiler. A pair that may become one
without an arrow against the import contracts should.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest

from artifacts.base.canonical_json import Malformed
from artifacts.base.errors import DATA_KIND
from artifacts.base.safetensors_io import DTYPES, FLOATS, INTEGERS
from artifacts.data.file_formats import KINDS
from artifacts.device.cuda import KEY
from artifacts.format import data_flow
from artifacts.format.conditions import check_type
from artifacts.format.manifest import stacked_name
from sexpgpu.language.codes import DATA_SOURCE
from sexpgpu.ops import types
from sexpgpu.phases.plan import PORT_KINDS
from sexpgpu.phases.run_settings import UNREAD

ROOT = Path(__file__).resolve().parents[2]

# The same definition but for the names of arguments and variables: FILE:NAME, or FILE:CLASS.NAME.
DEFINITIONS = [
    ("sexpgpu/language/diagnostics.py:Code", "artifacts/base/errors.py:Code"),
    ("sexpgpu/language/diagnostics.py:clause", "artifacts/base/errors.py:clause"),
    ("sexpgpu/language/diagnostics.py:printable", "artifacts/base/errors.py:printable"),
    ("sexpgpu/phases/plan.py:Phase.role", "artifacts/format/manifest.py:Phase.role"),
    ("sexpgpu/phases/run_settings.py:Stage", "artifacts/format/manifest.py:Stage"),
    ("sexpgpu/planning/cost_model.py:Rates", "schedules/target.py:Rates"),
    ("lowering/kernels/loop_builder.py:wrapped_sum", "schedules/gpu/loop_programs.py:wrapped_sum"),
    ("lowering/kernels/indexing.py:clamp", "schedules/gpu/scatter_add.py:_clamped"),
    ("lowering/passes/fma_contraction.py:_llvm_step", "schedules/tir/accumulators.py:fma"),
]

# The same value: FILE:NAME.
CONSTANTS = [
    # the score of a hidden key
    ("sexpgpu/ops/nn.py:MASKED_SCORE", "schedules/gpu/attention/causal_mask.py:MASKED_SCORE"),
    # bytes from which TVM takes a kernel's own buffer from its pool
    ("lowering/passes/memory_usage.py:MIN_HEAP_BYTES", "schedules/cpu/matmul_tiling.py:MAX_STACK_BYTES"),
    ("sexpgpu/language/grammar.py:MAX_COUNT", "artifacts/format/conditions.py:MAX_COUNT"),
    ("sexpgpu/trace/values.py:CTX_KEYS", "artifacts/format/data_flow.py:CTX"),
    ("sexpgpu/trace/values.py:CTX_MOVING", "artifacts/format/manifest.py:MOVING"),
    ("sexpgpu/trace/step_mean.py:WEIGHT", "artifacts/loop/step.py:WEIGHT"),
    ("sexpgpu/trace/random_draws.py:UNDRAWN", "artifacts/format/manifest.py:UNDRAWN"),
    ("sexpgpu/trace/mixed_precision.py:PRECISIONS", "artifacts/format/manifest_checks.py:PRECISIONS"),
]

SAME = {"i64": "number", "int64": "number"}  # functions that make an i64 constant


@pytest.mark.parametrize(("first", "second"), DEFINITIONS, ids=lambda place: place.rpartition(":")[2])
def test_a_definition_that_stands_in_two_packages_is_the_same_in_both(first: str, second: str) -> None:
    assert normalized(definition(first)) == normalized(definition(second))


@pytest.mark.parametrize(("first", "second"), CONSTANTS, ids=lambda place: place.rpartition(":")[2])
def test_a_constant_that_stands_in_two_packages_is_the_same_in_both(first: str, second: str) -> None:
    assert constant(first) == constant(second)


def test_the_language_and_the_runner_know_the_same_dtypes() -> None:
    assert {d.name: (d.numpy, d.bits // 8) for d in types.DTYPES.values()} == {
        name: (numpy, nbytes) for name, (numpy, _, nbytes) in DTYPES.items()
    }
    assert set(FLOATS) == {d.name for d in types.DTYPES.values() if d.kind == "float"}
    assert set(INTEGERS) == {d.name for d in types.DTYPES.values() if d.kind in ("int", "uint")}


@pytest.mark.parametrize(
    "shape",
    [(), (1,) * 8, (1,) * 9, (0,), (2**31 - 1,), (2**31,), (2**20, 2**20 - 1), (2**31 - 1, 512), (2**20, 2**20)],
    ids=str,
)
def test_the_language_and_the_runner_take_the_same_shapes(shape: tuple[int, ...]) -> None:
    assert accepts(types.check_shape, shape) == accepts(check_type, "x", shape, "f32")


def test_the_language_and_the_runner_know_the_same_kinds_of_ports() -> None:
    assert set(PORT_KINDS) == {kind for kinds in data_flow.KINDS.values() for side in kinds for kind in side}


def test_the_planner_names_a_stacked_phase_as_the_runner_does() -> None:
    """The planner's name is an f-string in the one call of Phase in its module."""
    tree = parsed("sexpgpu/planning/microbatch_stacking.py")
    calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call) and ast.unparse(n.func) == "Phase"]
    (name,) = (call.args[0] for call in calls)
    phase = type("Named", (), {"name": "train"})
    assert eval(compile(ast.Expression(name), "", "eval"), {"phase": phase, "k": 4}) == stacked_name("train", 4)


def test_the_runner_finds_the_key_of_kernels_where_the_compiler_writes_it() -> None:
    key = "0123456789abcdef" * 4
    match = KEY.fullmatch(constant("lowering/codegen/cuda_source.py:PREFIX") + key)
    assert match is not None and match[1] == key


def test_every_list_of_data_formats_names_those_that_the_runner_reads() -> None:
    """In hints, which are text, and among what the compiler refuses, which holds none of them."""
    hints = [
        DATA_SOURCE.fix,
        DATA_KIND.fix,
        *strings("sexpgpu/phases/run_settings.py", "use .npz"),
        *strings("artifacts/data/file_formats.py", "use .npz"),
    ]
    assert [re.findall(r"\.[a-z]+\b", hint) for hint in hints] == [list(KINDS)] * 4
    assert not set(UNREAD) & set(KINDS)


def parsed(path: str) -> ast.Module:
    return ast.parse((ROOT / path).read_text(encoding="utf-8"))


def definition(place: str) -> ast.FunctionDef | ast.ClassDef:
    """The function or class at FILE:NAME or FILE:CLASS.NAME."""
    path, _, names = place.partition(":")
    body: list[ast.stmt] = parsed(path).body
    node: Any = None
    for name in names.split("."):
        (node,) = (n for n in body if isinstance(n, ast.FunctionDef | ast.ClassDef) and n.name == name)
        body = node.body
    return node


def constant(place: str) -> Any:
    """The value of a module's constant, FILE:NAME, made of literals."""
    path, _, name = place.partition(":")
    (value,) = (
        statement.value
        for statement in parsed(path).body
        if isinstance(statement, ast.Assign) and [ast.unparse(target) for target in statement.targets] == [name]
    )
    return eval(compile(ast.Expression(value), path, "eval"), {"__builtins__": {}})


def strings(path: str, start: str) -> list[str]:
    """The string literals of a file that begin with ``start``."""
    values = (node.value for node in ast.walk(parsed(path)) if isinstance(node, ast.Constant))
    return [value for value in values if isinstance(value, str) and value.startswith(start)]


def normalized(node: ast.FunctionDef | ast.ClassDef) -> str:
    """The source without docstrings, a function's annotations and the choice of names for itself, its arguments and
    local variables. The fields of a class keep their names, types and defaults."""
    local = [n.arg for n in ast.walk(node) if isinstance(n, ast.arg)]
    local += [n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
    names = SAME | {name: f"local_{i}" for i, name in enumerate(dict.fromkeys(local))}
    if isinstance(node, ast.ClassDef):
        names = SAME
    return ast.unparse(ast.fix_missing_locations(_Normalize(names).visit(node)))


class _Normalize(ast.NodeTransformer):
    def __init__(self, names: dict[str, str]) -> None:
        self.names = names

    def visit_Name(self, node: ast.Name) -> ast.Name:
        return ast.Name(self.names.get(node.id, node.id), node.ctx)

    def visit_arg(self, node: ast.arg) -> ast.arg:
        return ast.arg(self.names.get(node.arg, node.arg))

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        self._prepare(node)
        node.name, node.returns = "function", None
        node.body = [ast.Assign([s.target], s.value) if _is_annotated(s) else s for s in node.body]  # type: ignore
        self.generic_visit(node)
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.ClassDef:
        self._prepare(node)
        self.generic_visit(node)
        return node

    @staticmethod
    def _prepare(node: ast.FunctionDef | ast.ClassDef) -> None:
        """Drops the docstring, and the module in the name of a decorator: ``attrs.frozen`` is ``frozen``."""
        node.body = node.body[1:] if ast.get_docstring(node) is not None else node.body
        node.decorator_list = [
            ast.Name(d.attr, ast.Load()) if isinstance(d, ast.Attribute) else d for d in node.decorator_list
        ]


def _is_annotated(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.AnnAssign) and statement.value is not None


def accepts(check: Any, *arguments: Any) -> bool:
    try:
        check(*arguments)
    except (types.ShapeFault, Malformed):
        return False
    return True
