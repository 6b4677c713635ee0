"""An engine whose pace is that of the event loop, and a trainer that takes from it: for tests of running ahead."""

import asyncio
import random
from contextlib import closing
from dataclasses import dataclass, field

import numpy as np
from tests.deadlines import HANG_S

from rlhf_core.contracts import Completion, RolloutContext, SamplingParams, Stop, Task, Uid
from rlhf_core.plugins import load
from rlhf_core.rng import seed_of
from rlhf_guard.rewards.panel import SampleScore
from rlhf_testing.fakes import EOS_ID, FakeRenderer
from rlhf_trainer.durable.records import Ledger, replay
from rlhf_trainer.rollouts.episodes import EpisodeRunner
from rlhf_trainer.rollouts.prompts import Cursor
from rlhf_trainer.rollouts.source import RolloutSource

SAMPLES, PROMPTS = 2, 4


class SteppingEngine:
    """Writes a token per turn of the event loop, labeled with the version of that moment. Lengths follow the seed, and
    every eighth completion is ten times as long."""

    shares_weights = False

    def __init__(self):
        self.version = 0
        self.in_flight = 0
        self.paused = 0
        self._open = asyncio.Event()
        self._open.set()

    async def generate(self, request):
        self.in_flight += 1
        try:
            return [await self._complete(seed) for seed in request.seeds]
        finally:
            self.in_flight -= 1

    async def _complete(self, seed):
        draw = random.Random(seed)
        count = draw.randint(1, 6) * (10 if draw.random() < 1 / 8 else 1)
        versions = []
        for _ in range(count):
            await self._open.wait()
            versions.append(self.version)
            await asyncio.sleep(0)
        return Completion(
            token_ids=np.array([*range(5, 4 + count), EOS_ID], np.int32),
            logprobs=np.zeros(count, np.float32),
            weight_version=np.array(versions, np.int32),
            stop=Stop.EOS,
        )

    async def update_weights(self, version, source=None):
        assert not self.in_flight or not self._open.is_set(), "weights changed under a request"
        self.version = version

    async def pause(self):
        self.paused += 1
        self._open.clear()

    async def resume(self):
        self._open.set()


class Tasks:
    """Thirty prompts in another order in each epoch."""

    def __len__(self):
        return 30

    def order(self, epoch, seed):
        return np.random.default_rng((epoch, seed)).permutation(30)

    def task(self, index, epoch):
        return Task(uid=Uid(epoch, index), prompt_ids=(5, 6), row={})


async def by_length(requests):
    await asyncio.sleep(0)
    return [SampleScore(reward=float(len(request.token_ids))) for request in requests]


def make_episodes(engine, seed):
    return EpisodeRunner(
        executor=load("").get("rlhf_rollout_executors", "single_turn").build(),
        context=RolloutContext(
            engine=engine,
            renderer=FakeRenderer(),
            sampling=SamplingParams(max_new_tokens=100),
            max_length=110,
            seed=lambda sample, turn: 0,
        ),
        seed_of=lambda task, sample, turn: seed_of(
            seed, "sample", task.uid.epoch, task.uid.prompt, sample, turn
        ),
        score=by_length,
        samples_per_prompt=SAMPLES,
    )


def make_source(engine, ahead, seed, filters=()):
    return RolloutSource(make_episodes(engine, seed), ahead=ahead, engine=engine, filters=filters)


@dataclass
class Trained:
    batches: list = field(default_factory=list)
    metrics: list = field(default_factory=list)
    staleness: list = field(default_factory=list)


async def train(engine, source, ledger, steps, seed, *, first=1, version=0, cursor=None):
    """The trainer's part: take, use up some time, change the weights."""
    cursor = cursor or Cursor(Tasks(), seed, epochs=None)
    pace, trained = random.Random(seed), Trained()
    for step in range(first, steps + 1):
        rollouts = await source.take(
            step,
            cursor,
            PROMPTS,
            max_refills=3,
            version=version,
            ledger=ledger,
            steps_left=steps - step,
        )
        trained.batches.append(rollouts.batch)
        trained.metrics.append({name: m.value() for name, m in rollouts.metrics.items()})
        trained.staleness.append(version - rollouts.batch.weight_version)
        for _ in range(pace.randint(0, 40)):
            await asyncio.sleep(0)
        await source.hold()
        version += 1
        await engine.update_weights(version)
        await source.release(version)
    return trained


def run(tmp_path, ahead, *, seed=0, steps=8, filters=()):
    engine = SteppingEngine()
    path = tmp_path / "ledger.jsonl"
    path.unlink(missing_ok=True)

    async def bounded():
        async with asyncio.timeout(HANG_S):
            source = make_source(engine, ahead, seed, filters)
            with closing(Ledger(path)) as ledger:
                trained = await train(engine, source, ledger, steps, seed)
            assert source.in_flight == []
            assert asyncio.all_tasks() == {asyncio.current_task()}
            return trained

    trained = asyncio.run(bounded())
    balance = replay(path)
    assert balance.unsettled() == []
    assert max((balance.trained + balance.dropped).values()) == SAMPLES
    return trained, balance, engine


def keys(batch):
    return sorted({(uid.epoch, uid.prompt) for uid in batch.uids()})
