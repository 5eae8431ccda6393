"""docs/bad-inputs.md and the tests of its rows."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_every_row_has_a_test_and_every_such_test_its_row() -> None:
    page = (ROOT / "docs/bad-inputs.md").read_text(encoding="utf-8")
    rows = [int(number) for number in re.findall(r"^\| (\d+) \|", page, re.MULTILINE)]
    tests = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    assert rows == sorted(set(rows))
    assert set(rows) == {int(number) for number in re.findall(r"^def test_row_(\d+)", tests, re.MULTILINE)}
