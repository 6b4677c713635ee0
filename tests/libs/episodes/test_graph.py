"""Graphs by hand: what each request shares, and which trajectories come out. Actions are shown with ``!``."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf_core import RolloutError
from rlhf_core.contracts import Completion, Stop, TrajectoryColumns, Uid
from rlhf_episodes import EpisodeGraph
from rlhf_testing.errors import has_code

UID = Uid(0, 3, 1)


@pytest.fixture
def graph():
    return EpisodeGraph(UID)


def test_a_request_that_extends_a_path_is_the_same_trajectory(graph, answer, shown):
    first = graph.add([1, 2], answer([5, 6], version=3))
    second = graph.add([1, 2, 5, 6, 9], answer([7, 8], version=4, stop=Stop.LENGTH))
    graph.reward(first, 0.5)
    graph.reward(second, 0.25)
    graph.reward(second, 1.0)

    (one,) = graph.trajectories(metrics={"turns": 2.0})

    assert shown([one]) == ["1 2 5! 6! 9 7! 8!"]
    assert (second.parent, second.shared, second.forked_at) == (first, 4, None)
    assert [(turn.start, turn.end, turn.reward, turn.stop) for turn in one.turns] == [
        (2, 4, 0.5, Stop.EOS),
        (5, 7, 1.25, Stop.LENGTH),
    ]
    assert one.uid == UID
    assert (one.rollout_logprobs * -1024).tolist() == [0, 1, 2, 3]
    assert one.weight_version.tolist() == [3, 3, 4, 4]
    assert (one.reward, one.total_reward, one.metrics) == (None, 1.75, {"turns": 2.0})


def test_a_turn_of_one_token_is_whole_unless_the_episode_is_cut_off_behind_it(answer):
    graph = EpisodeGraph(UID, one_token_turns=True)
    first = graph.add([1, 2], answer([5], stop=Stop.LENGTH))
    graph.add([1, 2, 5, 9], answer([6], stop=Stop.EOS))

    (one,) = graph.trajectories()
    assert [turn.stop for turn in one.turns] == [Stop.ONE_TOKEN, Stop.EOS]

    alone = EpisodeGraph(UID, one_token_turns=True)
    only = alone.add([1, 2], answer([5], stop=Stop.LENGTH))
    assert not alone.trajectories()[0].truncated
    alone.mark_stop(only, Stop.LENGTH)
    assert alone.trajectories()[0].truncated
    assert first.completion.stop is Stop.LENGTH


def test_a_node_knows_what_the_engine_read_and_wrote(graph, answer):
    graph.add([1, 2], answer([5, 6]))
    second = graph.add([1, 2, 5, 9], answer([7]), agent="critic")

    assert second.input_ids.tolist() == [1, 2, 5, 9]
    assert second.path_ids.tolist() == [1, 2, 5, 9, 7]
    assert (second.index, second.agent, second.start, second.end) == (1, "critic", 4, 5)


def test_a_fork_within_an_answer_trains_the_answer_where_it_was_sampled(graph, answer, shown):
    """The input has 8 in place of the answer's second token."""
    first = graph.add([1, 2], answer([5, 6]))
    second = graph.add([1, 2, 5, 8, 9], answer([7]))

    assert shown(graph.trajectories()) == ["1 2 5! 6!", "1 2 5 8 9 7!"]
    assert (second.parent, second.shared, second.forked_at) == (first, 3, 3)


def test_a_fork_within_context_shares_the_answers_before_it(graph, answer, shown):
    first = graph.add([1], answer([5]))
    second = graph.add([1, 5, 2, 3], answer([6]))
    third = graph.add([1, 5, 2, 4], answer([7]))
    fourth = graph.add([1, 5, 2, 4, 7, 2], answer([8]))

    assert shown(graph.trajectories()) == ["1 5! 2 3 6!", "1 5 2 4 7! 2 8!"]
    assert [node.parent for node in (first, second, third, fourth)] == [None, first, first, third]
    assert [node.forked_at for node in (first, second, third, fourth)] == [None, None, 3, None]


def test_a_fork_of_a_fork_finds_its_tokens(graph, answer, shown):
    graph.add([1, 2, 3], answer([4]))
    graph.add([1, 2, 9], answer([5]))
    third = graph.add([1, 2, 9, 5, 6], answer([7]))
    fourth = graph.add([1, 2, 9, 5, 8], answer([7]))

    assert shown(graph.trajectories()) == ["1 2 3 4!", "1 2 9 5! 6 7!", "1 2 9 5 8 7!"]
    assert fourth.parent is third.parent
    assert third.path_ids.tolist() == [1, 2, 9, 5, 6, 7]


def test_a_summary_of_the_history_trains_and_so_does_what_follows_it(graph, answer, shown):
    """Context compaction: the policy is asked for a summary, 77, with which a new context begins."""
    graph.add([1, 2], answer([5, 6]))
    graph.add([1, 2, 5, 6, 40], answer([77]))
    graph.add([1, 77, 2], answer([8]))

    assert shown(graph.trajectories()) == ["1 2 5! 6! 40 77!", "1 77 2 8!"]


def test_a_sub_agent_has_a_path_and_its_caller_goes_on(graph, answer, shown):
    caller = graph.add([1, 2], answer([5]))
    helper = graph.add([10, 11], answer([12]), agent="search")
    helper_again = graph.add([10, 11, 12, 13], answer([14]), agent="search")
    caller_again = graph.add([1, 2, 5, 14], answer([6]))

    assert shown(graph.trajectories()) == ["1 2 5! 14 6!", "10 11 12! 13 14!"]
    assert (helper.parent, helper_again.parent, caller_again.parent) == (None, helper, caller)
    assert graph.metrics()["graph/agents"] == 2


def test_both_roots_of_an_agent_train(graph, answer, shown):
    """A system prompt that is swapped in the middle of a run."""
    graph.add([1, 2], answer([5]))
    graph.add([3, 2, 5, 4], answer([6]))
    graph.add([3, 2, 5, 4, 6, 4], answer([7]))

    assert shown(graph.trajectories()) == ["1 2 5!", "3 2 5 4 6! 4 7!"]


def test_parallel_requests_are_siblings_in_any_order_of_arrival(graph, answer, shown):
    first = graph.add([1], answer([5]))
    left = graph.add([1, 5, 20], answer([6]))
    right = graph.add([1, 5, 30], answer([7]))
    joined = graph.add([1, 5, 30, 7, 6, 4], answer([8]))

    assert shown(graph.trajectories()) == ["1 5! 20 6!", "1 5 30 7! 6 4 8!"]
    assert (left.parent, right.parent, joined.parent) == (first, first, right)


def test_completions_of_one_prompt_are_siblings_and_each_trains(graph, answer, shown):
    """Equal first tokens were sampled each time, so they train each time."""
    for tokens in ([5, 6], [5, 7], [5, 6]):
        graph.add([1, 2], answer(tokens))

    assert shown(graph.trajectories()) == ["1 2 5! 6!", "1 2 5! 7!", "1 2 5! 6!"]
    assert graph.metrics()["graph/forks"] == 0


def test_a_turn_goes_on_from_the_completion_that_was_used(graph, answer, shown):
    graph.add([1, 2], answer([5, 6]))
    used = graph.add([1, 2], answer([5, 7]))
    following = graph.add([1, 2, 5, 7, 3], answer([8]))

    assert following.parent is used
    assert shown(graph.trajectories()) == ["1 2 5! 6!", "1 2 5! 7! 3 8!"]


def test_of_equal_completions_the_latest_goes_on(graph, answer):
    graph.add([1, 2], answer([5, 6]))
    latest = graph.add([1, 2], answer([5, 6]))

    assert graph.add([1, 2, 5, 6, 3], answer([8])).parent is latest


def test_an_input_that_ends_within_an_answer_is_no_fork(graph, answer, shown):
    """The start of an answer is given back to be continued."""
    first = graph.add([1], answer([5, 6, 7]))
    second = graph.add([1, 5, 6], answer([8]))

    assert (second.parent, second.shared, second.forked_at) == (first, 3, None)
    assert shown(graph.trajectories()) == ["1 5! 6! 7!", "1 5 6 8!"]


def test_a_retry_that_was_discarded_leaves_nothing(graph, answer, shown):
    """Also where the answer that counts was the second one: one path, as without the retry."""
    first = graph.add([1], answer([5]))
    lost = graph.add([1, 5, 2], answer([6]))
    graph.reward(lost, 1.0)
    graph.discard(lost)
    kept = graph.add([1, 5, 2], answer([7]))
    graph.reward(kept, 0.5)
    graph.mark_stop(kept, Stop.LENGTH)

    (one,) = graph.trajectories()

    assert shown([one]) == ["1 5! 2 7!"]
    assert (kept.parent, list(graph.nodes)) == (first, [first, kept])
    assert (one.total_reward, one.truncated) == (0.5, True)
    assert graph.metrics() == {
        "graph/requests": 2,
        "graph/segments": 1,
        "graph/agents": 1,
        "graph/forks": 0,
        "graph/rerendered_turns": 0,
        "graph/retokenized_tokens": 0,
        "graph/discarded": 1,
    }


def test_a_discarded_answer_that_is_read_after_all_counts_again(graph, answer, shown):
    graph.discard(graph.add([1], answer([5, 6])))
    graph.add([1, 5, 6, 2], answer([7]))

    assert shown(graph.trajectories()) == ["1 5! 6! 2 7!"]


def test_a_discarded_answer_of_which_a_part_is_read_does_not(graph, answer, shown):
    lost = graph.add([1], answer([5, 6]))
    graph.discard(lost)
    other = graph.add([1, 5, 2], answer([7]))

    assert other.parent is None
    assert shown(graph.trajectories()) == ["1 5 2 7!"]


def test_of_equal_completions_one_that_was_not_discarded_goes_on(graph, answer):
    kept = graph.add([1, 2], answer([5, 6]))
    graph.discard(graph.add([1, 2], answer([5, 6])))

    assert graph.add([1, 2, 5, 6, 3], answer([8])).parent is kept


def test_a_request_whose_answer_was_read_cannot_be_discarded(graph, answer):
    first = graph.add([1], answer([5]))
    graph.add([1, 5, 2], answer([6]))

    with pytest.raises(
        ValueError, match="request 0 cannot be discarded: request 1 read its answer"
    ):
        graph.discard(first)


def test_each_segments_total_reward_is_the_episodes(graph, answer):
    """0.5 + 0.25 by turn, 1 + 2 by episode: 3.75 wherever the turns stand."""
    graph.reward(graph.add([1], answer([5])), 0.5)
    graph.add([2], answer([5]))
    graph.reward(graph.add([1, 5, 3], answer([6])), 0.25)
    graph.reward(graph.add([3], answer([5])), -0.125)

    segments = graph.trajectories(rewards={"right": 1.0, "style": 2.0})

    assert [one.uid.segment for one in segments] == [0, 1, 2]
    assert [one.total_reward for one in segments] == [3.625] * 3
    assert [[turn.reward for turn in one.turns] for one in segments] == [[0.5, 0.25], [0], [-0.125]]
    assert [one.rewards for one in segments] == [{"right": 1.0, "style": 2.0}] * 3
    assert TrajectoryColumns.from_trajectories(segments).total_reward.tolist() == [3.625] * 3


def test_an_episode_that_asked_nothing_is_refused(graph, answer):
    with pytest.raises(RolloutError, match=r"0\.3\.1\.0", check=has_code("rollout/never-asked")):
        graph.trajectories()
    graph.discard(graph.add([1], answer([5])))
    with pytest.raises(RolloutError, check=has_code("rollout/never-asked")):
        graph.trajectories()


def test_an_empty_input_and_uneven_arrays_are_refused(graph, answer):
    good = answer([5])
    uneven = Completion(
        token_ids=good.token_ids,
        logprobs=np.zeros(2, dtype=np.float32),
        weight_version=good.weight_version,
        stop=Stop.EOS,
    )

    with pytest.raises(
        RolloutError, match=r"0\.3\.1\.0, request 0", check=has_code("rollout/empty-input")
    ):
        graph.add([], good)
    with pytest.raises(
        RolloutError, match=r"1 tokens, 2.*1 versions", check=has_code("engine/counts-differ")
    ):
        graph.add([1], uneven)
    with pytest.raises(RolloutError, match="0 tokens", check=has_code("engine/counts-differ")):
        graph.add([1], answer([]))


def test_a_long_linear_episode_is_one_array(graph, answer):
    """1 000 turns: the path is held once, not once a turn."""
    path = [1]
    for turn in range(1000):
        graph.add(path, answer([5, 6, 7]))
        path += [5, 6, 7, 1000 + turn]

    (one,) = graph.trajectories()

    assert one.token_ids.tolist() == path[:-1]
    assert len(one.turns) == 1000
    assert sum(len(branch._own) for branch in graph._branches) < 2 * len(path)


TOKENS = st.lists(st.integers(0, 2), min_size=1, max_size=4)
STEPS = st.lists(
    st.tuples(
        st.integers(0, 30),  # the earlier path from which the input is made
        st.integers(0, 30),  # how many of its tokens it keeps
        st.lists(st.integers(0, 2), max_size=4),  # what follows them
        TOKENS,  # the answer
        st.booleans(),  # whether the request is discarded, if nobody has read it by the end
    ),
    min_size=1,
    max_size=12,
)


def _number(completion):
    return (-completion.logprobs * 1024).astype(int).tolist()


@settings(max_examples=300, deadline=None)
@given(STEPS)
def test_what_is_trained_is_what_was_sampled_once_and_nothing_else(steps):
    """Few different tokens, so that paths meet by chance in every way. Each sampled token has a number of its own."""
    graph, count, plans = EpisodeGraph(UID), 0, []
    for which, keep, more, tokens, drop in steps:
        earlier = graph.nodes[which % len(graph.nodes)].path_ids.tolist() if graph.nodes else []
        prompt = [*earlier[:keep], *more] or [0]
        numbers = np.arange(count, count + len(tokens))
        count += len(tokens)
        completion = Completion(
            token_ids=np.array(tokens, dtype=np.int32),
            logprobs=(-numbers / 1024).astype(np.float32),
            weight_version=numbers.astype(np.int32),
            stop=Stop.EOS,
        )
        node = graph.add(prompt, completion)
        assert node.path_ids.tolist() == [*prompt, *tokens]
        assert node.shared <= len(prompt)
        plans.append((node, prompt, completion, drop))
    for node, _, _, drop in reversed(plans):
        if drop and all(other.parent is not node for other in graph.nodes) and len(graph.nodes) > 1:
            graph.discard(node)

    segments = graph.trajectories()

    trained = [number for one in segments for number in (-one.rollout_logprobs * 1024).astype(int)]
    kept = [plan for plan in plans if not plan[0].is_discarded]
    assert sorted(trained) == sorted(n for plan in kept for n in _number(plan[2]))
    assert all(one.action_mask.any() for one in segments)
    assert len({one.uid for one in segments}) == len(segments)
    for _, prompt, completion, _ in kept:
        (segment,) = (one for one in segments if -completion.logprobs[0] in -one.rollout_logprobs)
        first = np.flatnonzero(segment.action_mask)[
            np.flatnonzero(segment.rollout_logprobs == completion.logprobs[0])[0]
        ]
        assert segment.token_ids[:first].tolist() == prompt
        span = slice(first, first + len(completion.token_ids))
        assert segment.token_ids[span].tolist() == completion.token_ids.tolist()
        assert segment.action_mask[span].all()
    assert graph.metrics()["graph/segments"] == len(segments)
    assert graph.metrics()["graph/discarded"] == len(plans) - len(kept)
