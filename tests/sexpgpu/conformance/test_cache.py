"""Sentence 13 of the page on generation, its last words: a cache of keys and values, in the example that has one."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.conftest import EXAMPLES
from tests.sexpgpu.conformance.support import Case, inputs_of, of_phase

FOLDER = EXAMPLES / "characters"
SMALLER = (
    ("seq 64", "seq 16"),
    ("width 128", "width 32"),
    ("batch-size 16", "batch-size 4"),
    ("prompt 33", "prompt 5"),
)


def small(folder: Path, name: str) -> Case:
    """One of the example's runs, its sizes cut down, on the beginnings of its first rows."""
    text = (
        (FOLDER / f"{name}.sx").read_text().replace('(include "characters.sx")', (FOLDER / "characters.sx").read_text())
    )
    for old, new in SMALLER:
        assert text.count(f"(def {old})") == 1
        text = text.replace(f"(def {old})", f"(def {new})")
    data = {n: {"text": np.load(FOLDER / f"{n}.npz")["text"][:40, :17]} for n in ("train", "held-out")}
    return Case.of(folder / name, text, **data)


def test_s13_the_character_runs_write_the_same_rows_with_and_without_a_cache(tmp_path: Path) -> None:
    """13: integers, all equal, over three steps of training.

    The logits are not the same bits: one position's products are summed in another order than a whole row's. What is
    drawn is the greatest of logits with noise, so a character could differ where the two greatest are nearer to each
    other than that, some 1e-6; draws have 24 bits, and at this seed none of the 144 comes near.
    """
    rows, prompts = [], []
    for name in ("run", "full-row"):
        calls = small(tmp_path, name).calls(3)
        rows.append(np.array(inputs_of(calls, "train", "generated:row")))
        prompts.append(np.array(inputs_of(calls, "generate.init", "field:text")))
        assert len(of_phase(calls, "generate.step")) == 3 * 16
    np.testing.assert_array_equal(*rows)
    np.testing.assert_array_equal(rows[0][:, :, :5], prompts[0][:, :, :5])
    assert len(np.unique(rows[0][:, :, 5:])) > 40  # of 96: it writes something of everything
