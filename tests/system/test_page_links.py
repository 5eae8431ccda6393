"""Relative links of the pages: every file exists, and every ``#anchor`` is a heading of the page it points to."""

import re
from collections import Counter
from pathlib import Path
from urllib.parse import unquote

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
PAGES += sorted([*(ROOT / "docs").glob("*.md"), *(ROOT / "examples").glob("*/*.md"), ROOT / "scripts/bench/README.md"])
LINK = r"\[((?:[^][]|\[[^][]*\])*)\]\(\s*<?([^()\s>]*(?:\([^()\s]*\)[^()\s>]*)*)>?(?:\s+\"[^\"]*\")?\s*\)"
REFERENCE = r"^ {0,3}\[[^]]+\]:\s*<?(\S+?)>?(?:\s|$)"
SCHEME = r"[a-z][a-z0-9+.-]*:|//"


def prose(text: str) -> str:
    """``text`` without fenced blocks and comments."""
    text = re.sub(r"^ {0,3}(```+|~~~+).*?^ {0,3}\1[ \t]*$", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)


def anchors(text: str) -> set[str]:
    """The anchors that GitHub gives a page, and those that the page sets itself."""
    found: set[str] = set(re.findall(r"<a (?:id|name)=\"([^\"]+)\"", prose(text)))
    seen: Counter[str] = Counter()
    for title in re.findall(r"^ {0,3}#{1,6}[ \t]+(.+?)[ \t]*#*[ \t]*$", prose(text), re.MULTILINE):
        name = re.sub(r"[^\w\- ]", "", re.sub(LINK, r"\1", title).lower()).replace(" ", "-")
        found.add(f"{name}-{seen[name]}" if seen[name] else name)
        seen[name] += 1
    return found


def links(text: str) -> list[str]:
    """The targets of all links, in prose and not in code."""
    text = prose(text)
    plain = re.sub(r"(`+)(?!`)(?:(?!\n[ \t]*\n).)+?(?<!`)\1(?!`)", "", text, flags=re.DOTALL)
    return [target for _, target in re.findall(LINK, plain)] + re.findall(REFERENCE, plain, re.MULTILINE)


def broken(page: Path) -> list[str]:
    """The relative links of ``page`` that lead nowhere."""
    found = []
    for link in links(page.read_text(encoding="utf-8")):
        if re.match(SCHEME, link):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / unquote(name)) if name else page
        if not target.exists():
            found.append(f"{link}: no such file")
        elif anchor and anchor not in anchors(target.read_text(encoding="utf-8")):
            found.append(f"{link}: no such heading")
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    assert broken(page) == []


def test_anchors_are_github_s() -> None:
    text = """\
# A page: its *title*

## `E-READ-001`
## [Linked](there.md) words
## C++, CUDA_GRAPHS & -- dashes
## Twice
### Twice
## Twice ##
<a id="own"></a>
```sh
# no heading
```
"""
    assert anchors(text) == {
        *("a-page-its-title", "e-read-001", "linked-words", "c-cuda_graphs-----dashes"),
        *("twice", "twice-1", "twice-2", "own"),
    }


def test_a_broken_link_and_a_broken_anchor_are_found(tmp_path: Path) -> None:
    (tmp_path / "there.md").write_text("# There\n\n## A *part*\n", encoding="utf-8")
    page = tmp_path / "page.md"
    page.write_text(
        "# Here\n\n[a](there.md) [b](there.md#a-part) [`c`](#here) [d](https://example.org/gone#x) `[e](gone.md)`\n"
        "`one\nspan` [f\ng](gone.md) [h](there.md#gone) [i](#gone) ![j](gone.png)\n\n"
        "[k]: lost.md\n\n```\n[l](gone.md)\n```\n",
        encoding="utf-8",
    )
    assert broken(page) == [
        "gone.md: no such file",
        "there.md#gone: no such heading",
        "#gone: no such heading",
        "gone.png: no such file",
        "lost.md: no such file",
    ]
