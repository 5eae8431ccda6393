"""Converts JSON values to frozen attrs classes and back, by the classes' annotations; keys must match exactly."""

from __future__ import annotations

import types
from collections.abc import Mapping
from functools import cache
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

import attrs

from .canonical_json import Malformed

T = TypeVar("T")


def build(cls: type[T], value: Any, at: str = "") -> T:
    """The instance of the attrs class ``cls`` that the JSON object ``value`` says; Malformed names a wrong key."""
    if type(value) is not dict:
        raise Malformed(f"{at or 'the manifest'} is not an object")
    hints = _hints(cls)
    for key in value:
        if key not in hints:
            raise Malformed(f"{_join(at, key)} is not a known key")
    for key in hints:
        if key not in value:
            raise Malformed(f"{_join(at, key)} is missing")
    return cls(**{key: _value(hint, value[key], _join(at, key)) for key, hint in hints.items()})


def plain(value: Any) -> Any:
    """The JSON value of an attrs instance, tuple, mapping, number, string or None."""
    if attrs.has(type(value)):
        return {a.name: plain(getattr(value, a.name)) for a in attrs.fields(type(value))}
    if isinstance(value, Mapping):
        return {key: plain(entry) for key, entry in value.items()}
    if isinstance(value, tuple | list):
        return [plain(entry) for entry in value]
    return value


@cache
def _hints(cls: type) -> dict[str, Any]:
    hints = get_type_hints(cls)
    return {a.name: hints[a.name] for a in attrs.fields(cls)}


def _join(at: str, key: str) -> str:
    return f"{at}.{key}" if at else key


@cache
def _parts(hint: Any) -> tuple[Any, tuple[Any, ...], bool]:
    """What an annotation is made of, and whether it is one of our classes; a manifest asks a thousand times."""
    return get_origin(hint), get_args(hint), attrs.has(hint)


def _value(hint: Any, value: Any, at: str) -> Any:
    origin, args, is_ours = _parts(hint)
    if origin in (Union, types.UnionType):
        return None if value is None else _value(args[0], value, at)
    if origin is tuple:
        return _tuple(args, value, at)
    if origin in (dict, Mapping):
        return _mapping(args[1], value, at)
    if is_ours:
        return build(hint, value, at)
    if type(value) is not hint:
        raise Malformed(f"{at} is {_kind(value)}; it should be {_WORDS[hint]}")
    return value


def _tuple(args: tuple[Any, ...], value: Any, at: str) -> tuple[Any, ...]:
    if type(value) is not list:
        raise Malformed(f"{at} is {_kind(value)}; it should be a list")
    if len(args) == 2 and args[1] is Ellipsis:
        return tuple(_value(args[0], entry, f"{at}[{i}]") for i, entry in enumerate(value))
    if len(args) != len(value):
        raise Malformed(f"{at} has {len(value)} entries; it should have {len(args)}")
    return tuple(_value(a, entry, f"{at}[{i}]") for i, (a, entry) in enumerate(zip(args, value, strict=True)))


def _mapping(entry: Any, value: Any, at: str) -> dict[str, Any]:
    if type(value) is not dict:
        raise Malformed(f"{at} is {_kind(value)}; it should be an object")
    return {key: _value(entry, each, _join(at, key)) for key, each in value.items()}


_WORDS = {int: "an integer", str: "a string", bool: "true or false"}


def _kind(value: Any) -> str:
    words = {dict: "an object", list: "a list", type(None): "null", float: "a fraction", **_WORDS}
    return words.get(type(value), type(value).__name__)
