"""Reads the few properties of an ELF shared object that a build and a runner check. 64-bit little-endian files only.

It imports nothing of ours, so that the build and the runner read a library in the same way.

Layout: System V ABI, "Object Files"; machine numbers from the registry of the same.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from attrs import frozen

MAGIC = b"\x7fELF"
MACHINES = {62: "x86_64", 183: "aarch64"}
SYMBOL_TABLE, DYNAMIC, NO_BITS = 11, 6, 8  # section types SHT_DYNSYM, SHT_DYNAMIC, SHT_NOBITS
LOAD = 1  # segment type PT_LOAD
NEEDED, SONAME = 1, 14  # dynamic tags DT_NEEDED, DT_SONAME
SHARED = 3  # file type ET_DYN
HEADER = 64  # bytes of the file's header
ENTRIES = 56, 64  # bytes of an entry of the program and of the section header table


class NotElf(ValueError):
    """The bytes are not a 64-bit little-endian ELF shared object; the message says why."""


class Cut(NotElf):
    """A truncated ELF file: it ends before something that its headers place in it."""


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


@frozen
class _Segment:
    kind: int
    offset: int
    address: int
    size: int  # bytes in the file


@frozen
class _Symbol:
    name: str
    section: int  # 0: it is defined elsewhere
    address: int


def read(data: bytes) -> Shared:
    """Raises NotElf."""
    kind, machine = _header(data)
    if kind != SHARED or machine not in MACHINES:
        raise NotElf(f"ELF type {kind} for machine {machine}, not a shared object for {' or '.join(MACHINES.values())}")
    check_whole(data)
    try:
        sections = list(_sections(data))
        undefined = {symbol.name for symbol in _symbols(data, sections) if symbol.section == 0}
        needed = _dynamic(data, sections, NEEDED)
    except (struct.error, IndexError, ValueError) as fault:
        raise NotElf(f"a damaged ELF file: {fault}") from None
    return Shared(MACHINES[machine], tuple(sorted(undefined)), tuple(sorted(needed)))


def check_whole(data: bytes) -> None:
    """Raises Cut unless everything that the headers place in the file is in it: loading a truncated library would end
    the process."""
    _header(data)
    for what, count in _tables(data):
        _check_in_file(data, f"its {what} header table", *count)
    for n, segment in enumerate(_segments(data)):
        _check_in_file(data, f"segment {n}", segment.offset, segment.size)
    for n, section in enumerate(_sections(data)):
        if section.kind not in (0, NO_BITS):
            _check_in_file(data, f"section {n}", section.offset, section.size)


def constant(data: bytes, symbol: str, size: int) -> bytes | None:
    """The ``size`` bytes at the dynamic ``symbol`` of the complete shared object ``data``; None without the symbol."""
    try:
        symbols = [s for s in _symbols(data, list(_sections(data))) if s.name == symbol and s.section]
        for segment in _segments(data) if symbols else ():
            at = symbols[0].address - segment.address
            if segment.kind == LOAD and 0 <= at <= segment.size - size:
                return data[segment.offset + at : segment.offset + at + size]
    except (struct.error, IndexError, ValueError):
        pass
    return None


def name(data: bytes) -> str:
    """The SONAME of the complete shared object ``data``; "" without one."""
    try:
        return "".join(_dynamic(data, list(_sections(data)), SONAME))
    except (struct.error, IndexError, ValueError):
        return ""


def _header(data: bytes) -> tuple[int, int]:
    """(file type, machine)"""
    if data[:6] != MAGIC + b"\x02\x01":
        raise NotElf("not a 64-bit little-endian ELF file")
    if len(data) < HEADER:
        raise Cut(f"it ends at byte {len(data)}, within its header")
    return struct.unpack_from("<HH", data, 16)


def _tables(data: bytes) -> Iterator[tuple[str, tuple[int, int]]]:
    """(what, (its first byte, its bytes)) of the tables of segments and sections; NotElf where an entry has another
    size than these have."""
    starts, counts = struct.unpack_from("<QQ", data, 32), struct.unpack_from("<HHHH", data, 54)
    for what, start, wanted, size, count in zip(
        ("program", "section"), starts, ENTRIES, counts[::2], counts[1::2], strict=True
    ):
        if count and size != wanted:
            raise NotElf(f"a damaged ELF file: an entry of its {what} header table has {size} bytes, not {wanted}")
        yield what, (start, size * count)


def _check_in_file(data: bytes, what: str, start: int, size: int) -> None:
    if start + size > len(data):
        raise Cut(f"it ends at byte {len(data)}, and {what} at byte {start + size}")


def _segments(data: bytes) -> Iterator[_Segment]:
    (_, (start, size)), _ = _tables(data)
    for at in range(start, start + size, ENTRIES[0]):
        kind, _, offset, address, _, length = struct.unpack_from("<IIQQQQ", data, at)
        yield _Segment(kind, offset, address, length)


def _sections(data: bytes) -> Iterator[_Section]:
    _, (_, (start, size)) = _tables(data)
    for at in range(start, start + size, ENTRIES[1]):
        _, kind, _, _, offset, length, link = struct.unpack_from("<IIQQQQI", data, at)
        yield _Section(kind, offset, length, link)


def _symbols(data: bytes, sections: list[_Section]) -> Iterator[_Symbol]:
    for table in (s for s in sections if s.kind == SYMBOL_TABLE):
        for at in range(table.offset, table.offset + table.size, 24):
            name, _, _, section, address = struct.unpack_from("<IBBHQ", data, at)
            if name:
                yield _Symbol(_text(data, sections[table.link].offset + name), section, address)


def _dynamic(data: bytes, sections: list[_Section], wanted: int) -> set[str]:
    """The texts of the dynamic tag ``wanted``."""
    out = set()
    for table in (s for s in sections if s.kind == DYNAMIC):
        for at in range(table.offset, table.offset + table.size, 16):
            tag, value = struct.unpack_from("<qQ", data, at)
            if tag == wanted:
                out.add(_text(data, sections[table.link].offset + value))
    return out


def _text(data: bytes, at: int) -> str:
    return data[at : data.index(b"\0", at)].decode("ascii")
