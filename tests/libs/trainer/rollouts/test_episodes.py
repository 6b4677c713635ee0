"""Episodes of a prompt: the executor renders with the variables that the task's row gives the chat template."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest

from rlhf_core.contracts import RolloutContext, SamplingParams, Stop, Task, Trajectory, Turn, Uid
from rlhf_core.errors import DataError
from rlhf_data import TokenizerRenderer
from rlhf_testing.errors import has_code
from rlhf_testing.fakes import FakeEngine
from rlhf_testing.tiny import tiny_tokenizer
from rlhf_trainer.rollouts.episodes import EpisodeRunner

SAID = ({"role": "user", "content": "hi"},)
TEMPLATE = "{{ 'calm' if enable_thinking is false else 'deep' }}:{{ messages[-1].content }}"


class Renders:
    """An executor that renders an observation, as environments' messages are."""

    async def run(self, task, samples, context):
        ids = context.renderer.render(SAID)
        return [
            Trajectory(
                uid=task.uid._replace(sample=sample),
                token_ids=np.array([*ids, 5], dtype=np.int32),
                action_mask=np.arange(len(ids) + 1) == len(ids),
                rollout_logprobs=np.zeros(1, dtype=np.float32),
                weight_version=np.zeros(1, dtype=np.int32),
                turns=(Turn(start=len(ids), end=len(ids) + 1, stop=Stop.EOS),),
            )
            for sample in samples
        ]


@pytest.fixture
def runner():
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = TEMPLATE
    context = RolloutContext(
        engine=FakeEngine(),
        renderer=TokenizerRenderer(tokenizer),
        sampling=SamplingParams(max_new_tokens=4),
        max_length=64,
        seed=lambda sample, turn: 0,
    )
    return EpisodeRunner(
        executor=Renders(),
        context=context,
        seed_of=lambda task, sample, turn: 0,
        score=None,
        samples_per_prompt=2,
    )


def read(runner, row):
    task = Task(uid=Uid(0, 1), prompt_ids=(), messages=(), row=row)
    played = asyncio.run(runner.play(task))
    texts = [runner.context.renderer.decode(one.token_ids[:-1]) for one in played.trajectories]
    assert len(texts) == 2
    return set(texts)


def test_a_rows_variables_reach_every_observation(runner):
    assert read(runner, {}) == {"deep:hi"}
    assert read(runner, {"chat_template_kwargs": {"enable_thinking": False}}) == {"calm:hi"}


def test_a_row_goes_before_the_runs_variables(runner):
    calm = runner.context.renderer.with_template_kwargs({"enable_thinking": False})
    runner.context = replace(runner.context, renderer=calm)

    assert read(runner, {}) == {"calm:hi"}
    assert read(runner, {"chat_template_kwargs": {"enable_thinking": True}}) == {"deep:hi"}


def test_a_row_of_an_environment_with_a_variable_that_is_not_read_is_an_error(runner):
    with pytest.raises(DataError, match="'thinking'", check=has_code("template/unread-kwargs")):
        read(runner, {"chat_template_kwargs": {"thinking": False}})
