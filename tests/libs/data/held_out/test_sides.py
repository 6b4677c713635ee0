"""The side of a row is a function of what it asks: not of its place, its file, its keys or its answer."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhf_data.held_out.sides import Side, hashes_of, held_out, row_hash
from rlhf_data.sources import open_source

HASHES = st.lists(st.integers(0, 2**64 - 1), min_size=2, max_size=200)


@given(HASHES, st.floats(0.01, 0.99))
def test_different_rows_are_on_both_sides(hashes, fraction):
    mask = held_out(np.array(hashes, dtype=np.uint64), fraction)

    assert 0 < mask.sum() < len(hashes) or len(set(hashes)) == 1


def test_the_held_out_share_is_about_what_was_asked_for():
    hashes = np.array([row_hash({"q": f"{i}?"}, ["q"]) for i in range(100_000)], dtype=np.uint64)

    # standard deviation of a share of 0.1 over 100k rows: sqrt(0.09 / 1e5) < 0.001
    assert held_out(hashes, 0.1).mean() == pytest.approx(0.1, abs=0.005)


def test_neither_order_nor_number_of_rows_moves_a_row_to_the_other_side():
    rows = [{"q": f"{i}?"} for i in range(900)]
    hashes = np.array([row_hash(row, ["q"]) for row in rows], dtype=np.uint64)
    mask = held_out(hashes, 0.2)

    np.testing.assert_array_equal(held_out(hashes[:500], 0.2), mask[:500])
    np.testing.assert_array_equal(held_out(hashes[::-1], 0.2), mask[::-1])
    np.testing.assert_array_equal(held_out(hashes, 0.3) & mask, mask)  # a larger share adds rows


def test_rows_that_ask_the_same_have_one_hash():
    asked = {"prompt": [{"role": "user", "content": "1+1="}]}
    padded = {"prompt": [{"role": "user", "content": "1+1=", "tool_calls": None}]}

    one = row_hash({**asked, "id": 1, "response": "2"}, ["prompt"], ["prompt", "response"])
    other = row_hash({**padded, "id": 2, "response": "two"}, ["prompt"], ["prompt", "response"])

    assert one == other == row_hash({"q": asked["prompt"]}, ["q"])
    assert one != row_hash({"prompt": "1+1="}, ["prompt"])


def test_a_row_without_a_prompt_is_told_apart_by_all_that_is_read():
    columns = ["chosen", "rejected"]

    hashes = {row_hash({"chosen": "a", "rejected": text}, ["prompt"], columns) for text in "bcd"}

    assert len(hashes) == 3


def test_values_that_json_does_not_know_are_hashed():
    assert row_hash({"q": b"\0"}, ["q"]) != row_hash({"q": b"\1"}, ["q"])
    assert row_hash({"q": "\ud800"}, ["q"]) != row_hash({"q": "x"}, ["q"])


def test_the_same_rows_of_other_files_have_the_same_hashes(write_rows, tmp_path, datasets_cache):
    from datasets import Dataset

    rows = [{"q": f"{i}?", "more": {"x": i} if i % 2 else {"y": i}} for i in range(8)]
    Dataset.from_list(rows).to_parquet(tmp_path / "rows.parquet")

    lines = open_source(write_rows(rows))
    table = open_source(str(tmp_path / "rows.parquet"))

    np.testing.assert_array_equal(
        hashes_of(lines, 8, ["q", "more"]), hashes_of(table, 8, ["q", "more"])
    )


@pytest.mark.parametrize("fraction", [0.0, 0.3])
def test_each_row_is_on_one_side(fraction):
    hashes = np.random.default_rng(0).integers(0, 2**63, 50, dtype=np.uint64) * np.uint64(2)

    sides = [
        Side(fraction=fraction, is_evaluated=which).wanted(lambda: hashes, 50)
        for which in (False, True)
    ]

    assert (sides[0] ^ sides[1]).all()
    limited = Side(fraction=fraction, is_evaluated=True, max_rows=3).wanted(lambda: hashes, 50)
    assert limited.sum() == (3 if fraction else 0)
    assert (limited <= sides[1]).all()
