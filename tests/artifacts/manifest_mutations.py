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


def values_with_paths(value: Any, at: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Every value within ``value``, and where it is."""
    yield at, value
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, entry in entries:
        if at or key not in KEPT:
            yield from values_with_paths(entry, (*at, key))


def set_at(manifest: Any, at: Path, value: Any) -> None:
    """Put ``value`` at the path ``at``."""
    for key in at[:-1]:
        manifest = manifest[key]
    manifest[at[-1]] = value


def mutated_integer(rng: random.Random, n: int) -> int:
    """A neighbour of ``n``, a multiple of it, or a number at a limit."""
    return rng.choice((n + 1, n - 1, 2 * n, n // 2, 0, -1, -n, 2**40, 2**63 - 1))


def mutate_value(rng: random.Random, manifest: Any) -> str:
    """Another value of the same type, or of another one."""
    at, value = rng.choice([(at, v) for at, v in values_with_paths(manifest) if not isinstance(v, dict | list)])
    others = [v for other, v in values_with_paths(manifest) if isinstance(v, str) and other[-1:] == at[-1:]]
    if isinstance(value, bool):
        new: Any = not value
    elif isinstance(value, int):
        new = mutated_integer(rng, value)
    elif isinstance(value, str):
        new = rng.choice(DTYPES if at[-1] == "dtype" else (*WORDS, *others, *others))
    else:
        new = rng.choice((1, 0, "x"))
    set_at(manifest, at, new if rng.random() < 0.95 else None)
    return f"{at} is {new!r}, not {value!r}"


def mutate_list(rng: random.Random, manifest: Any) -> str:
    """An entry of a list is gone, stands twice, or has changed places with another; or one more is made up."""
    at, value = rng.choice([(at, v) for at, v in values_with_paths(manifest) if isinstance(v, list) and v])
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
            mutate_value(rng, made)
        elif isinstance(made, list):
            made = [mutated_integer(rng, n) if isinstance(n, int) else n for n in made]
        value.append(made)
    return f"{how} {i} {j} in {at}"


def swap_ports(rng: random.Random, manifest: Any) -> str:
    """Two inputs or outputs of a phase have changed places, and its pairs with them: all that reads them by name finds
    them."""
    phase = rng.choice([p for p in manifest["phases"] if len(p["outputs"]) > 1])
    side, of = rng.choice((("outputs", 0), ("inputs", 1)))
    ports = phase[side]
    i, j = rng.randrange(len(ports)), rng.randrange(len(ports))
    ports[i], ports[j] = ports[j], ports[i]
    for pair in phase["in_place"]:
        pair[of] = {i: j, j: i}.get(pair[of], pair[of])
    return f"{side} {i} and {j} of {phase['name']} swapped"


def mutate_everywhere(rng: random.Random, manifest: Any) -> str:
    """A length, a dtype or a name is another one wherever it stands."""
    how = rng.choice(("length", "dtype", "name", "tensor"))
    if how == "tensor":
        return mutate_tensor(rng, manifest)
    keys = {"length": ("shape", "batch"), "dtype": ("dtype",), "name": ("name", "function", "generated")}[how]
    leaves = [(at, v) for at, v in values_with_paths(manifest) if not isinstance(v, dict | list)]
    found = [(at, v) for at, v in leaves if set(keys) & set(at[-2:])]
    _, old = rng.choice(found)
    new = mutated_integer(rng, old) if how == "length" else rng.choice(DTYPES if how == "dtype" else ("x", "y/z"))
    for at, value in found:
        if value == old and type(value) is type(old):
            set_at(manifest, at, new)
    return f"{how} {old!r} is {new!r} everywhere"


def mutate_tensor(rng: random.Random, manifest: Any) -> str:
    """A parameter, and all that is named like it or is its optimizer's, has another type wherever it stands: half as
    long, a scalar, or of other numbers."""
    name = rng.choice(manifest["parameters"])["name"]
    kind = rng.choice(DTYPES)
    how = rng.choice(("half", "scalar", "longer", "rank", "dtype"))
    for _, value in list(values_with_paths(manifest)):
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


MUTATIONS: tuple[Callable[[random.Random, Any], str], ...] = (mutate_value, mutate_list, swap_ports, mutate_everywhere)


def mutation(rng: random.Random, manifest: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """(what was changed, a manifest that says so) of the plain ``manifest``."""
    changed = json.loads(json.dumps(manifest))  # a fifth of what deepcopy takes
    while True:
        said = rng.choice(MUTATIONS)(rng, changed)
        if changed != manifest:
            return said, changed
