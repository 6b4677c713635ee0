"""Sequences cut to a length, cut into pieces, and gathered as columns."""

import re
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhf_core.batch.task import Uid
from rlhf_core.batch.trajectory import Stop, Trajectory, Turn
from rlhf_core.batch.trajectory_columns import TrajectoryColumns
from rlhf_data.learned.options import SequenceOptions
from rlhf_data.learned.sequences import LearnedSequence, SequenceColumns, cut_to, pieces_of
from rlhf_data.learned.tokens import LearnedTokens
from rlhf_data.rows import RowProblem


def tokens(length, *turns):
    return LearnedTokens(
        token_ids=np.arange(length, dtype=np.int32),
        turns=np.array(turns, dtype=np.int64),
        overhang=np.zeros((len(turns), 2), dtype=np.int64),
    )


def cut(of, limit, on_too_long="truncate"):
    return cut_to(of, SequenceOptions(max_length=limit, on_too_long=on_too_long))


def test_a_sequence_that_is_short_enough_stays_whole():
    whole = cut(tokens(5, (1, 3), (4, 5)), 5, "refuse")

    assert whole.token_ids.tolist() == [0, 1, 2, 3, 4]
    assert whole.turns.tolist() == [[1, 3], [4, 5]]
    assert not whole.truncated


def test_a_long_sequence_is_refused_unless_it_may_be_cut():
    with pytest.raises(RowProblem, match=r"has 6 tokens, --data\.max_length allows 5"):
        cut(tokens(6, (1, 3)), 5, "refuse")


@pytest.mark.parametrize(
    ("start", "fix"),
    [(4, "cut it with --data.on_too_long truncate"), (5, "at token 6: raise --data.max_length")],
)
def test_a_cut_is_advised_where_it_leaves_something_to_learn(start, fix):
    with pytest.raises(RowProblem, match=re.escape(fix)):
        cut(tokens(8, (start, 8)), 5, "refuse")
    if "truncate" in fix:
        assert cut(tokens(8, (start, 8)), 5).truncated
    else:
        assert not cut(tokens(8, (start, 8)), 8).truncated


@pytest.mark.parametrize(
    ("limit", "turns"),
    [(7, [[1, 3], [5, 7]]), (6, [[1, 3], [5, 6]]), (5, [[1, 3]]), (3, [[1, 3]]), (2, [[1, 2]])],
)
def test_the_end_is_cut_off_with_the_turns_in_it(limit, turns):
    found = cut(tokens(8, (1, 3), (5, 8)), limit)

    assert found.token_ids.tolist() == list(range(limit))
    assert found.turns.tolist() == turns
    assert found.truncated


def test_a_sequence_whose_learned_tokens_are_all_cut_off_is_bad():
    with pytest.raises(RowProblem, match="the first learned token is number 5 of 8"):
        cut(tokens(8, (4, 6)), 4)


def test_a_sequence_that_is_learned_from_its_first_token_on_is_bad():
    with pytest.raises(RowProblem, match="nothing is before it"):
        cut(tokens(4, (0, 2)), 4)


def test_the_pieces_of_a_text_by_hand():
    pieces = list(pieces_of(np.arange(6, dtype=np.int32), 3))

    assert [piece.token_ids.tolist() for piece in pieces] == [[0, 1, 2], [2, 3, 4], [4, 5]]
    assert [piece.turns.tolist() for piece in pieces] == [[[1, 3]], [[1, 3]], [[1, 2]]]
    assert [piece.segment for piece in pieces] == [0, 1, 2]


@given(length=st.integers(2, 60), limit=st.integers(2, 20))
def test_every_token_but_the_first_is_learned_once(length, limit):
    pieces = list(pieces_of(np.arange(length, dtype=np.int32), limit))

    learned = [t for piece in pieces for a, b in piece.turns for t in piece.token_ids[a:b].tolist()]
    assert learned == list(range(1, length))
    assert all(2 <= len(piece.token_ids) <= limit for piece in pieces)


@st.composite
def sequences(draw):
    length = draw(st.integers(2, 12))
    cuts = sorted(draw(st.sets(st.integers(1, length), min_size=2, max_size=6)))
    turns = list(pairwise(cuts))
    chosen = draw(st.lists(st.sampled_from(turns), unique=True, min_size=1).map(sorted))
    return LearnedSequence(
        token_ids=np.array(draw(st.lists(st.integers(0, 99), min_size=length, max_size=length))),
        turns=np.array(chosen),
        turn_rewards=np.array(
            draw(st.lists(st.sampled_from([0, 0.5, 1]), min_size=len(chosen), max_size=len(chosen)))
        ),
        reward=draw(st.sampled_from([0.0, 1.0])),
        truncated=draw(st.booleans()),
    )


def trajectory(index, sequence):
    """The same as a trajectory that was sampled, which checks that mask and turns fit together."""
    mask = np.zeros(len(sequence.token_ids), dtype=bool)
    for start, end in sequence.turns:
        mask[start:end] = True
    count = int(mask.sum())
    stops = [Stop.EOS] * (len(sequence.turns) - 1) + [
        Stop.LENGTH if sequence.truncated else Stop.EOS
    ]
    return Trajectory(
        uid=Uid(0, index),
        token_ids=sequence.token_ids.astype(np.int32),
        action_mask=mask,
        rollout_logprobs=np.zeros(count, dtype=np.float32),
        weight_version=np.zeros(count, dtype=np.int32),
        turns=tuple(
            Turn(start=int(start), end=int(end), reward=float(reward), stop=stop)
            for (start, end), reward, stop in zip(
                sequence.turns, sequence.turn_rewards, stops, strict=True
            )
        ),
        reward=sequence.reward,
    )


@given(st.lists(sequences(), min_size=1, max_size=5))
def test_columns_are_those_of_the_same_trajectories(made):
    """Also where two turns touch."""
    gathered = SequenceColumns()
    for index, sequence in enumerate(made):
        gathered.add(index, sequence)

    found = gathered.columns().arrays()

    expected = TrajectoryColumns.from_trajectories(
        [trajectory(index, sequence) for index, sequence in enumerate(made)]
    ).arrays()
    assert found.keys() == expected.keys()
    for name, column in expected.items():
        np.testing.assert_array_equal(found[name], column, err_msg=name)
        assert found[name].dtype == column.dtype, name


def test_margins_are_a_column_where_there_are_any():
    sequence = LearnedSequence(token_ids=np.array([1, 2]), turns=np.array([[1, 2]]))
    with_margin, without = SequenceColumns(), SequenceColumns()
    with_margin.add(
        0, LearnedSequence(token_ids=sequence.token_ids, turns=sequence.turns, margin=0.5)
    )
    without.add(0, sequence)

    assert with_margin.columns().rewards["margin"].tolist() == [0.5]
    assert not without.columns().rewards
