"""The few facts of an ELF shared object that a build checks. 64-bit little-endian files only.

Layout: System V ABI, "Object Files"; machine numbers from the registry of the same.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from attrs import frozen

MACHINES = {62: "x86_64", 183: "aarch64"}
SYMBOL_TABLE, DYNAMIC = 11, 6  # section types SHT_DYNSYM, SHT_DYNAMIC
NEEDED = 1  # dynamic tag DT_NEEDED
SHARED = 3  # file type ET_DYN


class NotElf(ValueError):
    """The bytes are not a 64-bit little-endian ELF shared object; the message says why."""


@frozen
class Shared:
    """``machine`` as platform.machine() names it; ``undefined`` symbols it wants; ``needed`` libraries; all sorted."""

    machine: str
    undefined: tuple[str, ...]
    needed: tuple[str, ...]


@frozen
class _Section:
    kind: int
    offset: int
    size: int
    link: int  # number of the section that holds its names


def read(data: bytes) -> Shared:
    """Raises NotElf."""
    if data[:6] != b"\x7fELF\x02\x01":
        raise NotElf("not a 64-bit little-endian ELF file")
    try:
        kind, machine = struct.unpack_from("<HH", data, 16)
        sections = list(_sections(data))
        undefined, needed = _symbols(data, sections), _needed(data, sections)
    except (struct.error, IndexError, UnicodeDecodeError) as fault:
        raise NotElf(f"a damaged ELF file: {fault}") from None
    if kind != SHARED or machine not in MACHINES:
        raise NotElf(f"ELF type {kind} for machine {machine}, not a shared object for {' or '.join(MACHINES.values())}")
    return Shared(MACHINES[machine], tuple(sorted(undefined)), tuple(sorted(needed)))


def _sections(data: bytes) -> Iterator[_Section]:
    (start,) = struct.unpack_from("<Q", data, 40)
    size, count = struct.unpack_from("<HH", data, 58)
    if start + size * count > len(data):
        raise IndexError("it ends before its section table does")
    for n in range(count):
        _, kind, _, _, offset, length, link = struct.unpack_from("<IIQQQQI", data, start + n * size)
        yield _Section(kind, offset, length, link)


def _symbols(data: bytes, sections: list[_Section]) -> set[str]:
    out = set()
    for table in (s for s in sections if s.kind == SYMBOL_TABLE):
        for at in range(table.offset, table.offset + table.size, 24):
            name, _, _, section = struct.unpack_from("<IBBH", data, at)
            if name and section == 0:
                out.add(_text(data, sections[table.link].offset + name))
    return out


def _needed(data: bytes, sections: list[_Section]) -> set[str]:
    out = set()
    for table in (s for s in sections if s.kind == DYNAMIC):
        for at in range(table.offset, table.offset + table.size, 16):
            tag, value = struct.unpack_from("<qQ", data, at)
            if tag == NEEDED:
                out.add(_text(data, sections[table.link].offset + value))
    return out


def _text(data: bytes, at: int) -> str:
    return data[at : data.index(b"\0", at)].decode("ascii")
