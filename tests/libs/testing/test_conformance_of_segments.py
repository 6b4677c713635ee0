"""Executors of third parties whose episodes have several segments: a right one passes, and faults are caught."""

from dataclasses import replace

import pytest

from rlhf_core import Component
from rlhf_core.contracts import GenerationRequest
from rlhf_episodes import EpisodeGraph
from rlhf_testing.conformance import run_checks


class Forgetful:
    """Asks twice with the prompt alone and once more in continuation, so that its episodes fork."""

    def __init__(self, config=None):
        pass

    async def run(self, task, samples, context):
        rows = []
        for sample in samples:
            rows += self.changed(await self.episode(task, sample, context))
        return rows

    async def episode(self, task, sample, context):
        graph = EpisodeGraph(task.uid._replace(sample=sample))
        sampling = replace(context.sampling, max_new_tokens=min(3, context.sampling.max_new_tokens))
        prompt = task.prompt_ids
        for turn in range(3):
            request = GenerationRequest(
                uid=graph.uid,
                turn=turn,
                prompt_ids=prompt,
                seeds=(context.seed(sample, turn),),
                sampling=sampling,
            )
            if len(prompt) + 3 > context.max_length:
                break
            (completion,) = await context.engine.generate(request)
            graph.add(prompt, completion)
            if turn == 1:
                prompt = (*prompt, *completion.token_ids.tolist(), 77)
        return graph.trajectories(rewards={"judge": 1.0})

    def changed(self, rows):
        return rows


class TrainsTwice(Forgetful):
    """The first turn of the last segment is one of the first segment, too."""

    def changed(self, rows):
        return [*rows, replace(rows[-1], uid=rows[-1].uid._replace(segment=len(rows)))]


class HasNoEnd(Forgetful):
    def changed(self, rows):
        return [replace(row, is_final=False) for row in rows]


class LeavesAGap(Forgetful):
    def changed(self, rows):
        return [replace(row, uid=row.uid._replace(segment=2 * row.uid.segment)) for row in rows]


class SplitsTheReward(Forgetful):
    def changed(self, rows):
        return [replace(row, reward=row.reward / (1 + row.uid.segment), rewards={}) for row in rows]


def failed(executor):
    component = Component(name="forgetful", factory=executor, summary="asks again")
    return {one.check for one in run_checks("rlhf_rollout_executors", component) if one.failed}


def test_an_executor_with_segments_passes():
    assert failed(Forgetful) == set()


@pytest.mark.parametrize(
    ("executor", "check"),
    [
        (TrainsTwice, "check_no_token_trains_twice"),
        (HasNoEnd, "check_segments_are_one_episode"),
        (LeavesAGap, "check_segments_are_one_episode"),
        (SplitsTheReward, "check_segments_are_one_episode"),
    ],
)
def test_a_planted_fault_is_caught_by_its_check(executor, check):
    assert failed(executor) == {check}
