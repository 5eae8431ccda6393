"""Manifests that say something false: at one place, or the same at all places, so that what fits still fits."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator
from typing import Any

Path = tuple[Any, ...]
DTYPES = ("f32", "bf16", "f16", "f64", "i8", "u8", "i32", "u32", "i64", "bool", "f33")
WORDS = ("", "x", "loss", "grad_norm", "\0", "a\nb", "..", "é", "x" * 600)
KEPT = ("files", "format", "version")  # what the writer makes anew, or what another code is for


def places(value: Any, at: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Every value within ``value``, and where it is."""
    yield at, value
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, entry in entries:
        if at or key not in KEPT:
            yield from places(entry, (*at, key))


def put(whole: Any, at: Path, value: Any) -> None:
    for key in at[:-1]:
        whole = whole[key]
    whole[at[-1]] = value


def number(rng: random.Random, n: int) -> int:
    return rng.choice((n + 1, n - 1, 2 * n, n // 2, 0, -1, -n, 2**40, 2**63 - 1))


def leaf(rng: random.Random, whole: Any) -> str:
    """Another value of the same type, or of another one."""
    at, value = rng.choice([(at, v) for at, v in places(whole) if not isinstance(v, dict | list)])
    others = [v for other, v in places(whole) if isinstance(v, str) and other[-1:] == at[-1:]]
    if isinstance(value, bool):
        new: Any = not value
    elif isinstance(value, int):
        new = number(rng, value)
    elif isinstance(value, str):
        new = rng.choice(DTYPES if at[-1] == "dtype" else (*WORDS, *others, *others))
    else:
        new = rng.choice((1, 0, "x"))
    put(whole, at, new if rng.random() < 0.95 else None)
    return f"{at} is {new!r}, not {value!r}"


def order(rng: random.Random, whole: Any) -> str:
    """An entry of a list is gone, stands twice, or has changed places with another; or one more is made up."""
    at, value = rng.choice([(at, v) for at, v in places(whole) if isinstance(v, list) and v])
    how, i, j = rng.choice(("drop", "twice", "swap", "more")), rng.randrange(len(value)), rng.randrange(len(value))
    if how == "drop":
        del value[i]
    elif how == "twice":
        value.insert(j, copy.deepcopy(value[i]))
    elif how == "swap":
        value[i], value[j] = value[j], value[i]
    else:
        made = copy.deepcopy(value[i])
        if isinstance(made, dict):
            leaf(rng, made)
        elif isinstance(made, list):
            made = [number(rng, n) if isinstance(n, int) else n for n in made]
        value.append(made)
    return f"{how} {i} {j} in {at}"


def swapped(rng: random.Random, whole: Any) -> str:
    """Two inputs or outputs of a phase have changed places, and its pairs with them: all that reads them by name finds
    them."""
    phase = rng.choice([p for p in whole["phases"] if len(p["outputs"]) > 1])
    side, of = rng.choice((("outputs", 0), ("inputs", 1)))
    ports = phase[side]
    i, j = rng.randrange(len(ports)), rng.randrange(len(ports))
    ports[i], ports[j] = ports[j], ports[i]
    for pair in phase["in_place"]:
        pair[of] = {i: j, j: i}.get(pair[of], pair[of])
    return f"{side} {i} and {j} of {phase['name']} swapped"


def everywhere(rng: random.Random, whole: Any) -> str:
    """A length, a dtype or a name is another one wherever it stands."""
    how = rng.choice(("length", "dtype", "name", "tensor"))
    if how == "tensor":
        return tensor(rng, whole)
    keys = {"length": ("shape", "batch"), "dtype": ("dtype",), "name": ("name", "function", "generated")}[how]
    found = [(at, v) for at, v in places(whole) if not isinstance(v, dict | list) and set(keys) & set(at[-2:])]
    _, old = rng.choice(found)
    new = number(rng, old) if how == "length" else rng.choice(DTYPES if how == "dtype" else ("x", "y/z"))
    for at, value in found:
        if value == old and type(value) is type(old):
            put(whole, at, new)
    return f"{how} {old!r} is {new!r} everywhere"


def tensor(rng: random.Random, whole: Any) -> str:
    """A parameter, and all that is named like it or is its optimizer's, has another type wherever it stands: half as
    long, a scalar, or of other numbers."""
    name = rng.choice(whole["parameters"])["name"]
    kind = rng.choice(DTYPES)
    how = rng.choice(("half", "scalar", "longer", "rank", "dtype"))
    for _, value in list(places(whole)):
        if isinstance(value, dict) and "shape" in value and f"{value['name']}/".startswith(f"{name}/"):
            shape = value["shape"]
            if how == "dtype":
                value["dtype"] = kind
            elif how == "scalar":
                value["shape"] = []
            elif how == "rank":
                value["shape"] = [1, *shape]
            else:
                value["shape"] = [max(1, n // 2) if how == "half" else n + 1 for n in shape]
    return f"tensor {name}: {how} {kind}"


LIES: tuple[Callable[[random.Random, Any], str], ...] = (leaf, order, swapped, everywhere)


def lie(rng: random.Random, manifest: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """(what was changed, a manifest that says so) of the plain ``manifest``."""
    whole = json.loads(json.dumps(manifest))  # a fifth of what deepcopy takes
    while True:
        said = rng.choice(LIES)(rng, whole)
        if whole != manifest:
            return said, whole
