"""Experts of tokens on the paths of an episode's graph."""

import numpy as np
import pytest

from rlhf_core import RolloutError
from rlhf_core.contracts import Completion, Stop, Uid
from rlhf_episodes import EpisodeGraph
from rlhf_testing.errors import has_code


def answer(prompt, tokens, expert, *, layers=2):
    """A completion whose tokens all went to one expert in each layer."""
    size = len(tokens)
    return Completion(
        token_ids=np.array(tokens, dtype=np.int32),
        logprobs=np.zeros(size, dtype=np.float32),
        weight_version=np.zeros(size, dtype=np.int32),
        stop=Stop.EOS,
        expert_routes=None
        if expert is None
        else np.full((len(prompt) + size - 1, layers, 1), expert, dtype=np.int8),
    )


def add(graph, prompt, tokens, expert):
    return graph.add(prompt, answer(prompt, tokens, expert))


def experts(trajectory):
    return trajectory.routes[:, 0, 0].tolist()


def test_a_token_keeps_the_experts_of_the_first_pass_that_read_it():
    graph = EpisodeGraph(Uid(0, 0))
    add(graph, [1, 2], [3, 4], 5)
    add(graph, [1, 2, 3, 4, 6], [7, 8], 6)

    (trajectory,) = graph.trajectories()

    assert trajectory.routes.shape == (7, 2, 1)
    assert experts(trajectory) == [
        5,
        5,
        5,
        6,
        6,
        6,
        -1,
    ]  # 4 was read by the second request, 8 by none


def test_a_fork_has_the_experts_of_the_path_that_it_left():
    graph = EpisodeGraph(Uid(0, 0))
    add(graph, [1, 2], [3, 4], 5)
    add(graph, [1, 2, 3, 9], [7, 8], 6)

    stem, fork = graph.trajectories()

    assert experts(stem) == [5, 5, 5, -1]
    assert experts(fork) == [5, 5, 5, 6, 6, -1]


def test_a_request_that_was_discarded_leaves_the_experts_of_the_others():
    graph = EpisodeGraph(Uid(0, 0))
    add(graph, [1, 2], [3, 4], 5)
    graph.discard(add(graph, [1, 2, 3, 4, 6], [7, 8], 6))
    add(graph, [1, 2, 3, 4], [9, 9], 7)

    (trajectory,) = graph.trajectories()

    assert trajectory.token_ids.tolist() == [1, 2, 3, 4, 9, 9]
    assert experts(trajectory) == [5, 5, 5, 6, 7, -1]


def test_requests_without_experts_leave_theirs_unknown():
    graph = EpisodeGraph(Uid(0, 0))
    add(graph, [1, 2], [3, 4], None)

    assert graph.trajectories()[0].routes is None

    add(graph, [1, 2, 9], [5, 6], 2)
    first, second = graph.trajectories()
    assert experts(first) == [2, 2, -1, -1]
    assert experts(second) == [2, 2, 2, 2, -1]


@pytest.mark.parametrize(
    "routes", [np.zeros((4, 2, 1), np.int8), np.zeros((3, 1, 1), np.int8), np.zeros(3, np.int8)]
)
def test_routes_of_other_tokens_or_another_model_are_refused(routes):
    graph = EpisodeGraph(Uid(0, 0))
    add(graph, [8], [9], 0)
    given = answer([1, 2], [3, 4], None)

    wrong = Completion(
        **{name: getattr(given, name) for name in given.__slots__} | {"expert_routes": routes}
    )
    with pytest.raises(
        RolloutError, match=r"\(3, 2, 1\)", check=has_code("engine/shape-of-routes")
    ):
        graph.add([1, 2], wrong)
