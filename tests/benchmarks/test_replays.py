"""The claim of docs/replay.md: spans come out to the bit, and changed options do what a run that has them does."""

import random

import pytest
from benchmarks import replays


@pytest.mark.parametrize("seed", range(20))
def test_spans_begin_at_the_beginning_behind_a_checkpoint_and_between_two(seed):
    start, single, between, several = replays.spans_of(random.Random(seed), 4)

    assert start[0] == 1
    assert single[0] == single[1]
    assert all(step % replays.EVERY for step in (between[0] - 1, *between))
    assert several[1] > several[0]
    assert all(replays.EVERY < first <= last <= replays.STEPS for first, last in (single, several))


@pytest.mark.slow
def test_spans_and_counterfactuals_of_two_kinds_are_equal_to_the_bit(monkeypatch, capsys):
    monkeypatch.setattr(
        "sys.argv",
        ["replays.py", "--seed", "3", "--kinds", "critic", "dpo", "--spans", "2"],
    )

    assert replays.main() == 0, capsys.readouterr().out

    assert "4 of 4 spans and 4 of 4 counterfactuals" in capsys.readouterr().out


@pytest.mark.slow
def test_a_span_with_other_weights_is_no_equal_one(tmp_path, capsys):
    """The benchmark can fail: a twin of another seed has other weights behind the first step."""
    replays.write_task(tmp_path, seed=1)
    replays.train(tmp_path, "dpo", tmp_path / "dpo/run", 1, every=replays.EVERY)
    replays.train(tmp_path, "dpo", tmp_path / "dpo/twin", 2, every=1)

    assert replays.show_spans(tmp_path, random.Random(1), "dpo", 1) == 0
    assert "step 1, policy/" in capsys.readouterr().out
