"""Drifts that were planted: which answers count as rendered again, and how many of their tokens as changed."""

import numpy as np
import pytest

from rlhf_core.contracts import Uid
from rlhf_episodes import EpisodeGraph

PROMPT = [1, 2, 3]
ANSWER = [10, 11, 12, 13, 14, 15, 16, 17]
END = [4, 5]

DRIFTS = {
    # (second input, turns that are rendered again, tokens that are changed)
    "nothing": ([*PROMPT, *ANSWER, *END], 0, 0),
    "one token became another": ([*PROMPT, 10, 11, 12, 99, 14, 15, 16, 17, *END], 1, 1),
    "one token became two": ([*PROMPT, 10, 11, 12, 98, 99, 14, 15, 16, 17, *END], 1, 1),
    "two tokens became one": ([*PROMPT, 10, 11, 12, 99, 15, 16, 17, *END], 1, 2),
    "two places drifted": ([*PROMPT, 10, 98, 12, 13, 14, 99, 16, 17, *END], 1, 2),
    "the first token drifted": ([*PROMPT, 99, 11, 12, 13, 14, 15, 16, 17, *END], 1, 1),
    "the last token drifted": ([*PROMPT, 10, 11, 12, 13, 14, 15, 16, 99, *END], 1, 1),
    "white space at the end was cut off": ([*PROMPT, 10, 11, 12, 13, 14, 15, *END], 1, 2),
    "reasoning was taken out": ([*PROMPT, 10, 14, 15, 16, 17, *END], 1, 0),
    "most of the answer was taken out": ([*PROMPT, 10, 16, 17, *END], 0, 0),
    "reasoning was taken out at the start": ([*PROMPT, 13, 14, 15, 16, 17, *END], 1, 0),
    "empty reasoning took its place": ([*PROMPT, 98, 99, 13, 14, 15, 16, 17, *END], 1, 3),
    "every fourth token drifted": ([*PROMPT, 10, 11, 12, 98, 14, 15, 16, 99, *END], 1, 2),
    "the answer stands in another message": ([*PROMPT, 50, 51, *ANSWER, *END], 1, 0),
    "the answer was written by others": ([*PROMPT, 17, 15, 13, 11, 10, 12, *END], 0, 0),
    "the system prompt has a new date": ([1, 99, 3, *ANSWER, *END], 1, 0),
    "the system prompt is another one": ([99, *PROMPT, *ANSWER, *END], 0, 0),
    "the history became a summary": ([*PROMPT, 50, 51, 52, *END], 0, 0),
    "a marker before the answer changed": ([1, 2, 99, *ANSWER, *END], 1, 0),
}


@pytest.mark.parametrize("name", DRIFTS)
def test_a_drift_is_counted(name, answer):
    second, turns, changed = DRIFTS[name]
    graph = EpisodeGraph(Uid(0, 0))
    graph.add(PROMPT, answer(ANSWER))

    graph.add(second, answer([20]))

    found = graph.metrics()
    assert (found["graph/rerendered_turns"], found["graph/retokenized_tokens"]) == (turns, changed)


def test_a_history_that_is_rendered_again_counts_each_answer_once(answer):
    """An agent that renders everything anew: 3 answers, each with its second token changed in every later input."""
    graph, history = EpisodeGraph(Uid(0, 0)), [1, 2]
    for turn in range(4):
        first = 10 * turn + 10
        graph.add(history, answer([first, first + 1, first + 2, first + 3, first + 4]))
        history = [*history, first, 900 + turn, first + 2, first + 3, first + 4, 3]

    found = graph.metrics()
    assert (found["graph/forks"], found["graph/segments"]) == (3, 4)
    assert (found["graph/rerendered_turns"], found["graph/retokenized_tokens"]) == (3, 3)


def test_several_answers_after_a_fork_are_looked_for_in_their_order(answer):
    """A changed system prompt: the first answer stands there as it was, the second with one token changed."""
    graph = EpisodeGraph(Uid(0, 0))
    graph.add([1, 2], answer([10, 11, 12, 13]))
    graph.add([1, 2, 10, 11, 12, 13, 3], answer([20, 21, 22, 23, 24]))

    graph.add([1, 9, 10, 11, 12, 13, 3, 20, 99, 22, 23, 24, 3], answer([30]))

    found = graph.metrics()
    assert (found["graph/rerendered_turns"], found["graph/retokenized_tokens"]) == (2, 1)


def test_another_agents_input_is_no_drift(answer):
    graph = EpisodeGraph(Uid(0, 0))
    graph.add(PROMPT, answer(ANSWER))

    graph.add([1, 2, 99, *ANSWER], answer([20]), agent="judge")

    assert graph.metrics()["graph/rerendered_turns"] == 0


def test_a_short_answer_counts_only_if_all_of_it_is_there(answer):
    for second, turns in (([1, 9, 3, 10, 11], 1), ([1, 9, 3, 8, 11], 0)):
        graph = EpisodeGraph(Uid(0, 0))
        graph.add([1, 2, 3], answer([10, 11]))

        graph.add(second, answer([20]))

        assert graph.metrics()["graph/rerendered_turns"] == turns


def test_the_search_is_quick_in_long_inputs_of_one_token(answer):
    """The worst case of a comparison by suffix: everything matches everywhere."""
    graph = EpisodeGraph(Uid(0, 0))
    graph.add([1, 2], answer([7] * 2000))

    graph.add([1, 3, *[7] * 3000], answer([7]))

    assert graph.metrics()["graph/rerendered_turns"] == 1
    assert graph.trajectories()[0].token_ids.dtype == np.int32
