"""Rows of an update as samples: which are kept, their texts and tokens, and the numbers that losses make of them."""

import json
import math

import numpy as np
import pytest

from rlhf_core.contracts import (
    Normalizers,
    StepOutcome,
    StepPlan,
    TrainBatch,
    Trajectory,
    TrajectoryColumns,
    Turn,
    Uid,
)
from rlhf_core.plugins import load
from rlhf_data import TokenizerRenderer
from rlhf_plugin_supervised.training.preferences.answers import seen_judged, seen_pairs
from rlhf_plugin_supervised.training.recording import RowRecorder
from rlhf_plugin_supervised.training.seen import ModelNumbers, Seen, SeenRow
from rlhf_plugin_supervised.training.update import Evaluated, Update
from rlhf_testing.tiny import tiny_tokenizer

TEXT = "1+2=3"
PLAN = StepPlan(normalizers=Normalizers(num_actions=1, num_sequences=1, max_actions=1))


def row(number, sample=0, reward=0.0, learned=((4, 5),)):
    """The tokens of ``TEXT``, of which some spans are learned."""
    token_ids = np.array(tiny_tokenizer().encode(TEXT, add_special_tokens=False), dtype=np.int32)
    mask = np.zeros(len(token_ids), dtype=bool)
    for start, end in learned:
        mask[start:end] = True
    actions = int(mask.sum())
    return Trajectory(
        uid=Uid(0, number, sample, 0),
        token_ids=token_ids,
        action_mask=mask,
        rollout_logprobs=np.zeros(actions, dtype=np.float32),
        weight_version=np.zeros(actions, dtype=np.int32),
        turns=tuple(Turn(start=start, end=end) for start, end in learned),
        reward=reward,
    )


def update(*rows, **columns):
    plain = {name: np.array(column, dtype=np.float32) for name, column in columns.items()}
    return Update(
        batch=TrainBatch(trajectories=TrajectoryColumns.from_trajectories(rows), columns=plain)
    )


class Halves:
    """Each row has what was outputs of its first learned token."""

    def __init__(self, rows_per_unit=1, kind="row", steps=()):
        self.rows_per_unit, self.kind, self.steps = rows_per_unit, kind, steps
        self.images = None

    def seen(self, part, outputs):
        firsts = outputs.numbers[part.batch.trajectories.action_offsets[:-1]].tolist()
        rows = [SeenRow(score=first, numbers={"nll": -first}, steps=self.steps) for first in firsts]
        return Seen(kind=self.kind, rows=rows, columns={"old_logprobs": outputs.numbers})


def recorder(examples, count=2, hears_tokens=True, has_scores=False):
    return RowRecorder(
        examples,
        TokenizerRenderer(tiny_tokenizer()) if count else None,
        count=count,
        has_scores=has_scores,
        hears_tokens=hears_tokens,
    )


def samples(kept, whole, logprobs, epoch=3):
    outputs = np.array(logprobs, dtype=np.float32)
    return kept.samples(whole, StepOutcome(metrics={}, logprobs=outputs), epoch=epoch)


def test_rows_are_spread_evenly_over_the_update_and_have_its_epoch():
    whole = update(*map(row, range(5)))

    found = samples(recorder(Halves(), count=3), whole, [-0.0, -1.0, -2.0, -3.0, -4.0])

    assert [each["uid"] for each in found] == ["3.0.0.0", "3.2.0.0", "3.4.0.0"]
    assert [each["rewards"]["nll"] for each in found] == [0.0, 2.0, 4.0]
    assert (found[0]["prompt"], found[0]["response"], found[0]["example"]) == ("1+2=", "3", "row")


def test_a_pair_is_kept_whole():
    whole = update(*(row(number, sample) for number in range(3) for sample in (0, 1)))

    found = samples(recorder(Halves(rows_per_unit=2), count=1), whole, range(6))

    assert [each["uid"] for each in found] == ["3.0.0.0", "3.0.1.0"]


def test_tokens_have_columns_where_they_are_learned_and_are_kept_for_who_hears_them():
    whole = update(row(0, learned=((1, 2), (4, 5))))

    (found,) = samples(recorder(Halves()), whole, [-0.5, -1.5])
    (silent,) = samples(recorder(Halves(), hears_tokens=False), whole, [-0.5, -1.5])

    assert found["tokens"].texts == ("1", "+", "2", "=", "3")
    assert found["tokens"].action_mask.tolist() == [False, True, False, False, True]
    assert found["tokens"].columns["old_logprobs"].tolist() == [-0.5, -1.5]
    assert found["parts"] == [["policy", "+"], ["environment", "2="], ["policy", "3"]]
    assert "tokens" not in silent


def test_a_solution_is_cut_behind_each_labeled_step():
    whole = update(row(0, learned=((1, 2), (4, 5))))
    steps = [(2.0, 1.0), (-1.0, 1.0)]

    (found,) = samples(recorder(Halves(kind="steps", steps=steps)), whole, [2.0, -1.0])

    assert found["steps"] == [["1+", 2.0, 1.0], ["2=3", -1.0, 1.0]]


def test_nothing_is_asked_for_without_samples():
    none = recorder(Halves(), count=0)

    assert none.asking(PLAN) == PLAN
    assert samples(none, update(row(0)), [-1.0]) is None


def test_an_update_is_asked_for_what_is_recorded_of_its_own_pass():
    of_scores = recorder(Halves(), has_scores=True).asking(PLAN)
    of_logprobs = recorder(Halves()).asking(PLAN)

    assert (of_scores.return_values, of_scores.return_logprobs) == (True, False)
    assert (of_logprobs.return_values, of_logprobs.return_logprobs) == (False, True)


def test_scores_are_those_of_the_update():
    whole, outputs = update(row(0), row(1)), np.array([0.5, -2.0], dtype=np.float32)

    kept = recorder(Halves(), has_scores=True)
    found = kept.samples(whole, StepOutcome(metrics={}, values=outputs), epoch=0)

    assert found is not None
    assert [each["reward"] for each in found] == [0.5, -2.0]
    assert kept.samples(whole, StepOutcome(metrics={}), epoch=0) is None


def evaluated(sets, *rows, numbers, losses=None):
    plain = [None if each is None else np.array(each, np.float32) for each in (numbers, losses)]
    return Evaluated(
        metrics={},
        sets={name: np.array(at) for name, at in sets.items()},
        update=update(*rows),
        outputs=ModelNumbers(numbers=plain[0], losses=plain[1]),
    )


def test_the_first_rows_of_each_held_out_set_are_recorded_with_its_name():
    sets = {"near": [0, 2, 4], "far": [1, 3]}
    found = recorder(Halves(), hears_tokens=False).held_out(
        evaluated(sets, *map(row, range(5)), numbers=[-0.0, -1.0, -2.0, -3.0, -4.0])
    )

    assert [(each["eval"], each["uid"]) for each in found] == [
        ("near", "-1.0.0.0"),
        ("near", "-1.2.0.0"),
        ("far", "-1.1.0.0"),
        ("far", "-1.3.0.0"),
    ]
    assert [each["rewards"]["nll"] for each in found] == [0.0, 2.0, 1.0, 3.0]
    assert json.loads(json.dumps(found)) == found


def test_held_out_pairs_are_kept_whole():
    rows = [row(number, sample) for number in range(3) for sample in (0, 1)]
    found = recorder(Halves(rows_per_unit=2), count=2).held_out(
        evaluated({"all": range(6)}, *rows, numbers=range(6))
    )

    assert [each["uid"] for each in found] == ["-1.0.0.0", "-1.0.1.0", "-1.1.0.0", "-1.1.1.0"]


def test_tokens_of_a_held_out_row_are_in_its_record():
    rows = [row(0, learned=((1, 2), (4, 5)))]
    (found,) = recorder(Halves(), hears_tokens=False).held_out(
        evaluated({"all": [0]}, *rows, numbers=[-0.123456, -math.inf])
    )

    assert found["tokens"] == {
        "texts": ["1", "+", "2", "=", "3"],
        "order": [0, 1, 2, 3, 4],
        "learned": [[1, 2], [4, 5]],
        "trainer_logprob": [-0.1235, None],
    }


def test_no_held_out_row_is_recorded_without_samples():
    assert recorder(Halves(), count=0).held_out(evaluated({"all": [0]}, row(0), numbers=[0])) == []


def loss_of(name, **options):
    registered = load("").get("rlhf_preference_losses", name)
    return registered.component.factory(registered.validate(options))


def test_the_loss_of_a_pair_is_that_of_its_margin():
    whole = update(row(0, 0, 1.0), row(0, 1, 0.0), ref_logprobs=[-2.0, -1.0])
    logprobs = np.array([-1.0, -3.0], dtype=np.float32)

    found = seen_pairs(loss_of("dpo", beta=0.5), whole.batch, logprobs)

    chosen, rejected = found.rows  # 0.5 (-1 + 2) = 0.5 and 0.5 (-3 + 1) = -1
    assert (chosen.score, rejected.score) == (0.5, -1.0)
    assert (chosen.chosen, rejected.chosen) == (True, False)
    assert chosen.numbers == rejected.numbers
    assert chosen.numbers["margin"] == 1.5
    assert chosen.numbers["right"] == 1.0
    assert chosen.numbers["loss"] == pytest.approx(math.log1p(math.exp(-1.5)), abs=1e-6)
    assert found.columns["ref_logprobs"].tolist() == [-2.0, -1.0]


def test_judged_answers_keep_their_order_among_good_and_bad_ones():
    rows = [row(0, reward=0.0), row(1, reward=1.0), row(2, reward=0.0)]
    whole = update(*rows, ref_logprobs=[-1.0, -1.0, -1.0])
    logprobs = np.array([-3.0, -0.5, 0.0], dtype=np.float32)

    found = seen_judged(
        loss_of("kto", beta=0.1), Update(batch=whole.batch, mismatched_kl=0.0), logprobs
    )

    assert [each.score for each in found.rows] == pytest.approx([-0.2, 0.05, 0.1])
    assert [each.chosen for each in found.rows] == [False, True, False]
    assert [each.numbers["right"] for each in found.rows] == [1.0, 1.0, 0.0]
