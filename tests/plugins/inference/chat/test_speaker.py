"""Answers in pieces."""

from __future__ import annotations

import pytest

from rlhf_core import RolloutError
from rlhf_testing.errors import has_code

from .conftest import QUESTION


async def pieces_of(speaker, attempt=0):
    return [piece async for piece in speaker.answer(QUESTION, turn=1, attempt=attempt)]


def test_a_greedy_answer_is_the_same_in_pieces_of_any_size(speaking):
    whole = speaking(pieces_of, piece=0, temperature=0.0)

    assert len(whole) == 1
    for piece in (1, 3, 7):
        pieces = speaking(pieces_of, piece=piece, temperature=0.0)
        assert len(pieces) > 2
        assert "".join(pieces) == whole[0]


def test_a_sampled_answer_depends_on_seed_and_attempt_alone(speaking):
    first = speaking(pieces_of)

    assert speaking(pieces_of) == first
    assert speaking(lambda speaker: pieces_of(speaker, attempt=1)) != first


def test_a_stop_string_ends_the_answer_though_it_spans_two_pieces(speaking):
    (whole,) = speaking(pieces_of, piece=0, temperature=0.0)
    stop = whole[2:5]
    assert len(set(stop)) > 1

    for piece in (0, 1, 3, 4):
        pieces = speaking(pieces_of, piece=piece, temperature=0.0, stop=(stop,))
        assert "".join(pieces) == whole[: whole.index(stop) + 3]


def test_a_stop_string_within_the_first_tokens_ends_no_answer(speaking):
    """One character is one token here."""
    (whole,) = speaking(pieces_of, piece=0, temperature=0.0, min_new_tokens=24)
    stop = next(letter for letter in whole[:9] if whole.find(letter, 9) > 0)

    for piece in (0, 1, 4):
        pieces = speaking(pieces_of, piece=piece, temperature=0.0, stop=(stop,), min_new_tokens=9)
        assert "".join(pieces) == whole[: whole.index(stop, 9) + 1]


def test_an_answer_ends_at_its_limit_and_at_that_of_the_conversation(speaking):
    """The prompt, user:hello and assistant:, has 21 tokens with the line break."""
    (long,) = speaking(pieces_of, piece=0, temperature=0.0, min_new_tokens=24)
    pieces = speaking(pieces_of, temperature=0.0, min_new_tokens=24, max_length=21 + 10)

    assert long.startswith("".join(pieces))
    assert len("".join(pieces)) <= 10


def test_a_conversation_without_room_for_an_answer_is_refused(speaking):
    with pytest.raises(RolloutError, match="21 tokens", check=has_code("rollout/prompt-too-long")):
        speaking(pieces_of, max_length=21)
