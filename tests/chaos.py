"""Two thousand episodes of one executor, taken in steps: for tests in which many of them go wrong."""

import asyncio
from contextlib import closing

import numpy as np
from tests.deadlines import HANG_S

from rlhf_core.contracts import RolloutContext, SamplingParams, Task, Uid
from rlhf_core.rng import seed_of
from rlhf_testing.fakes import FakeEngine, FakeRenderer
from rlhf_trainer.durable.records import Ledger, replay
from rlhf_trainer.rollouts.episodes import EpisodeRunner
from rlhf_trainer.rollouts.prompts import Cursor
from rlhf_trainer.rollouts.source import RolloutSource

PROMPTS, SAMPLES, STEPS = 50, 8, 5


class Tasks:
    def __len__(self):
        return PROMPTS * STEPS

    def order(self, epoch, seed):
        return np.arange(len(self))

    def task(self, index, epoch):
        return Task(uid=Uid(epoch, index), prompt_ids=(5, 6), row={})


def play(executor, path, environment=None, *, no_task_left=False):
    """The batches of all steps, and the balance of the ledger at ``path``.

    ``no_task_left``: nothing that an episode started may go on behind the last step.
    """

    async def bounded(ledger):
        async with asyncio.timeout(HANG_S):
            taken = await _steps(executor, ledger, environment)
            if no_task_left:
                assert asyncio.all_tasks() == {asyncio.current_task()}
            return taken

    with closing(Ledger(path)) as ledger:
        taken = asyncio.run(bounded(ledger))
    return taken, replay(path)


async def _steps(executor, ledger, environment):
    engine = FakeEngine(mean_length=4)
    episodes = EpisodeRunner(
        executor=executor,
        context=RolloutContext(
            engine=engine,
            renderer=FakeRenderer(),
            sampling=SamplingParams(max_new_tokens=8),
            max_length=200,
            seed=lambda sample, turn: 0,
            environment=environment,
        ),
        seed_of=lambda task, sample, turn: seed_of(0, "sample", task.uid.prompt, sample, turn),
        score=None,
        samples_per_prompt=SAMPLES,
    )
    source, cursor = RolloutSource(episodes), Cursor(Tasks(), 0, epochs=1)
    taken = []
    for step in range(1, STEPS + 1):
        taken.append(
            await source.take(step, cursor, PROMPTS, max_refills=0, version=0, ledger=ledger)
        )
    assert source.in_flight == []
    assert engine.in_flight == 0
    return taken
