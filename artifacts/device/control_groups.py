"""The control groups (cgroup v1 and v2) of this process, wherever they are mounted, and their CPU quota.

A group is limited by each of its ancestors too.
"""

from __future__ import annotations

from collections.abc import Iterator

PROC, USUAL = "/proc", "/sys/fs/cgroup"


def folders(controller: str, proc: str = PROC, usual: str = USUAL) -> Iterator[tuple[int, str]]:
    """(version, folder) of this process's groups that have ``controller``, the outermost that is visible first.

    usual: where they are taken to be mounted if the system does not say
    """
    mounts = list(_mounts(f"{proc}/self/mountinfo"))
    for line in lines(f"{proc}/self/cgroup"):
        _, controllers, group = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        version = 1 if controllers else 2
        kind = {1: "cgroup", 2: "cgroup2"}[version]
        roots = [(root, at) for root, at, fs, more in mounts if fs == kind and (version == 2 or controller in more)]
        for root, at in roots or [("/", usual if version == 2 else f"{usual}/{controller}")]:
            parts = _below(group, root)
            yield from ((version, "/".join((at, *parts[:depth]))) for depth in range(len(parts) + 1))


def _mounts(path: str) -> Iterator[tuple[str, str, str, list[str]]]:
    """(root within the file system, mount point, its kind, its options) of each mount, as proc(5) writes them."""
    for line in lines(path):
        mount, _, filesystem = line.partition(" - ")
        if len(words := mount.split(" ")) > 4 and len(more := filesystem.split(" ")) > 2:
            yield _plain(words[3]), _plain(words[4]), more[0], more[2].split(",")


def _plain(word: str) -> str:
    for escape, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        word = word.replace(escape, character)
    return word


def _below(group: str, root: str) -> list[str]:
    """The names from the group ``root`` down to ``group``; none where that is not within it, as in a container whose
    mount begins at its own group."""
    is_below = root == "/" or group == root or group.startswith(f"{root}/")
    parts = [part for part in group.removeprefix(root if root != "/" else "").split("/") if part]
    return parts if is_below and ".." not in parts else []


def quota(proc: str = PROC, usual: str = USUAL) -> tuple[float, str] | None:
    """The smallest quota of processor time, in cores, and the folder of its group; None where there is none."""
    quotas = []
    for version, folder in folders("cpu", proc, usual):
        if version == 2:
            words = " ".join(lines(f"{folder}/cpu.max")).split()
        else:
            words = [*lines(f"{folder}/cpu.cfs_quota_us"), *lines(f"{folder}/cpu.cfs_period_us")]
        if len(words) == 2 and all(word.isdigit() for word in words) and int(words[1]):  # not "max", not -1
            quotas.append((int(words[0]) / int(words[1]), folder))
    return min(quotas, default=None)


def lines(path: str) -> list[str]:
    """Of the file at ``path``; none where it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().splitlines()
    except OSError:
        return []
