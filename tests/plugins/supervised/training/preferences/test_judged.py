"""Judged answers: what is said of their labels before the first step, and answers beside the prompts of others."""

import logging

import numpy as np
import pytest

from rlhf_core import DataError
from rlhf_core.contracts import Trajectory, TrajectoryColumns, Turn, Uid
from rlhf_core.media import MediaRef, MediaSpan
from rlhf_plugin_supervised.training.preferences.judged import mismatched, say_labels
from rlhf_testing.errors import has_code


def image(number):
    return MediaRef(sha256=f"{number:064x}", num_bytes=1, format="png", width=8, height=8)


def rows_of(*rows, images=()):
    """Rows of a prompt and an answer, with a token of a chat template behind each.

    Args:
        images: for each row the number of the image on its first token.
    """
    made = []
    for index, (prompt, answer) in enumerate(rows):
        start, end = len(prompt), len(prompt) + len(answer)
        tokens = np.array([*prompt, *answer, 99], dtype=np.int32)
        mask = np.zeros(end + 1, dtype=bool)
        mask[start:end] = True
        made.append(
            Trajectory(
                uid=Uid(0, index),
                token_ids=tokens,
                action_mask=mask,
                rollout_logprobs=np.zeros(len(answer), dtype=np.float32),
                weight_version=np.zeros(len(answer), dtype=np.int32),
                turns=(Turn(start=start, end=end),),
                media=tuple(
                    MediaSpan(start=0, length=1, image=image(number))
                    for number in images[index : index + 1]
                ),
            )
        )
    return TrajectoryColumns.from_trajectories(made)


def shown(rows):
    return [
        (rows.tokens_of(row).tolist(), rows.actions_of(row).tolist()) for row in range(len(rows))
    ]


def test_each_prompt_gets_the_answer_of_the_next_row():
    found = mismatched(rows_of(([1], [10, 11]), ([2, 3], [20]), ([4], [30, 31])), 100)

    assert shown(found) == [
        ([1, 20], [20]),
        ([2, 3, 30, 31], [30, 31]),
        ([4, 10, 11], [10, 11]),
    ]


def test_no_prompt_meets_an_answer_of_its_own():
    """Two answers to each of three prompts: the smallest shift that does it is 2."""
    prompts = [[1], [1], [2], [2], [3], [3]]
    found = mismatched(rows_of(*((prompt, [10 + row]) for row, prompt in enumerate(prompts))), 100)

    assert [answer for _, (answer,) in shown(found)] == [12, 13, 14, 15, 10, 11]


def test_where_some_have_to_meet_their_own_the_fewest_do():
    """Of four rows three have one prompt: whatever the shift, two of these meet."""
    found = mismatched(rows_of(([1], [10]), ([1], [11]), ([1], [12]), ([2], [20])), 100)

    assert [answer for _, (answer,) in shown(found)] == [11, 12, 20, 10]


def test_an_answer_that_is_too_long_beside_its_new_prompt_loses_its_end():
    found = mismatched(rows_of(([1, 2, 3, 4], [10]), ([5], [20, 21, 22, 23])), 6)

    assert shown(found) == [([1, 2, 3, 4, 20, 21], [20, 21]), ([5, 10], [10])]


@pytest.mark.parametrize("count", [1, 3])
def test_answers_to_one_prompt_alone_are_refused(count):
    with pytest.raises(DataError, match=f"{count} rows", check=has_code("data/too-few-prompts")):
        mismatched(rows_of(*(([1], [10 + row]) for row in range(count))), 100)


def test_prompts_keep_their_images_and_other_images_are_other_prompts():
    rows = rows_of(([1, 2], [10]), ([1, 2], [11]), ([1, 2], [12]), images=[5, 5, 6])

    found = mismatched(rows, 100)

    assert [found.media_of(row) for row in range(3)] == [rows.media_of(row) for row in range(3)]
    # The first two rows have one prompt. Shifted by 1 the first of them meets its own, by 2 the second.
    assert [answer for _, (answer,) in shown(found)] == [11, 12, 10]
    with pytest.raises(DataError, match="2 rows", check=has_code("data/too-few-prompts")):
        mismatched(rows_of(([1], [10]), ([1], [11]), images=[5, 5]), 100)


def said(rewards, caplog):
    with caplog.at_level(logging.INFO):
        say_labels(np.array(rewards, dtype=np.float32))
    return [(record.levelno, record.getMessage()) for record in caplog.records]


def test_the_log_says_how_many_answers_are_good(caplog):
    assert said([1, 0, 1], caplog) == [(logging.INFO, "2 good answers and 1 bad ones")]


@pytest.mark.parametrize(
    ("label", "kind", "other", "moves", "missing"),
    [
        (1, "good", "bad", "more", "false"),
        (0, "bad", "good", "less", "true"),
    ],
)
def test_labels_of_one_kind_are_a_warning_with_the_fix(caplog, label, kind, other, moves, missing):
    """The loss of one kind is defined, so it is no error; warnings are printed whatever the display shows."""
    assert said([label] * 3, caplog) == [
        (
            logging.WARNING,
            f"all 3 answers are {kind} ones: expected some of both kinds. The loss alone makes each of them {moves} "
            f"likely, and no {other} answer holds against it; add rows whose label is {missing}",
        )
    ]
