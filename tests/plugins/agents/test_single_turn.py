import asyncio

import numpy as np
import pytest

from rlhf_core import Config, RolloutError
from rlhf_core.contracts import Completion, Stop, Task, Uid
from rlhf_plugin_agents.single_turn import SingleTurn
from rlhf_testing.errors import has_code
from rlhf_testing.fakes import EOS_ID, FakeEngine


def run(task, samples, context):
    return asyncio.run(SingleTurn(Config()).run(task, samples, context))


def test_the_whole_group_is_one_request_with_a_seed_per_sample(stage, task):
    context = stage.context()

    trajectories = run(task, range(4), context)

    (request,) = stage.engine.requests
    assert request.prompt_ids == task.prompt_ids
    assert request.seeds == tuple(context.seed(sample, 0) for sample in range(4))
    assert [str(one.uid) for one in trajectories] == ["0.3.0.0", "0.3.1.0", "0.3.2.0", "0.3.3.0"]


def test_tokens_logprobs_and_versions_are_the_engines(stage, task):
    stage.engine = FakeEngine(lambda request, index: "ab" * (index + 1))
    stage.engine.version = 5

    first, second = run(task, range(2), stage.context())

    # "abab" and end-of-sequence after 8 prompt tokens.
    assert second.token_ids.tolist() == [*task.prompt_ids, *stage.renderer.encode("abab"), EOS_ID]
    assert second.action_mask.tolist() == [False] * 8 + [True] * 5
    np.testing.assert_array_equal(second.rollout_logprobs, -np.arange(1, 6) / 1024)
    assert second.weight_version.tolist() == [5] * 5
    assert (second.turns[0].start, second.turns[0].end, second.turns[0].stop) == (8, 13, Stop.EOS)
    assert first.turns[0].end == 11


def test_a_sample_is_the_same_in_any_group(stage, task):
    together = run(task, range(4), stage.context())
    alone = run(task, [2], stage.context())

    np.testing.assert_array_equal(alone[0].token_ids, together[2].token_ids)
    assert alone[0].uid == together[2].uid


@pytest.mark.parametrize(("max_length", "expected"), [(1000, 6), (12, 4)])
def test_the_response_gets_the_smaller_of_its_limit_and_the_room_left(
    stage, task, max_length, expected
):
    stage.engine = FakeEngine(lambda request, index: "x" * 100)

    (one,) = run(
        task, [0], stage.context(max_length=max_length, max_new_tokens=6, min_new_tokens=5)
    )

    sampling = stage.engine.requests[0].sampling
    assert sampling.max_new_tokens == expected
    assert sampling.min_new_tokens == min(5, expected)
    assert int(one.action_mask.sum()) == expected
    assert one.truncated


def test_a_prompt_that_fills_the_sequence_is_refused_by_uid(stage, task):
    with pytest.raises(
        RolloutError, match=r"0\.3\.0\.0.*8 tokens", check=has_code("rollout/prompt-too-long")
    ):
        run(task, [0], stage.context(max_length=8))


def test_a_task_without_a_prompt_is_refused(stage):
    with pytest.raises(RolloutError, match=r"0\.9\.0\.0", check=has_code("rollout/no-prompt")):
        run(Task(uid=Uid(0, 9)), [0], stage.context())


def test_an_engine_that_returns_too_few_completions_is_an_error(stage, task):
    class Forgetful(FakeEngine):
        async def generate(self, request):
            return (await super().generate(request))[:-1]

    stage.engine = Forgetful()

    with pytest.raises(
        RolloutError, match=r"3 completions.*4 seeds", check=has_code("engine/wrong-answer")
    ):
        run(task, range(4), stage.context())


def test_an_empty_completion_is_an_error_that_names_the_uid(stage, task):
    class SecondIsEmpty(FakeEngine):
        async def generate(self, request):
            first, second = await super().generate(request)
            names = ("token_ids", "logprobs", "weight_version")
            none = {name: getattr(second, name)[:0] for name in names}
            return [first, Completion(**none, stop=Stop.ABORTED)]

    stage.engine = SecondIsEmpty()

    with pytest.raises(
        RolloutError,
        match=r"0\.3\.1\.0, request 0.*0 tokens",
        check=has_code("engine/counts-differ"),
    ):
        run(task, range(2), stage.context())
