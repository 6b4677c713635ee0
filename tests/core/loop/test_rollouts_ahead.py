"""Generation that runs ahead of training: the bound on staleness, the books, and equality with running on-policy."""

import asyncio
import json
import random
from contextlib import closing
from dataclasses import dataclass, field

import numpy as np
import pytest

from rlhf_core.contracts import Completion, RolloutContext, SamplingParams, Stop, Task, Uid
from rlhf_core.errors import RolloutError
from rlhf_core.loop.cursor import Cursor
from rlhf_core.loop.episodes import EpisodeRunner
from rlhf_core.loop.ledger import Ledger, replay
from rlhf_core.loop.rng import seed_of
from rlhf_core.loop.rollouts import Ahead, RolloutSource
from rlhf_core.plugins import load
from rlhf_core.rewards.panel import SampleScore
from rlhf_core.testing.fakes import EOS_ID, FakeRenderer

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


def make_source(engine, ahead, seed, filters=()):
    episodes = EpisodeRunner(
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
    return RolloutSource(episodes, ahead=ahead, engine=engine, filters=filters)


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
        async with asyncio.timeout(60):
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


CASES = [
    Ahead(max_staleness=k, in_flight_updates=swap and k > 0, spare_prompts=spare, concurrency=slots)
    for k in (0, 1, 3)
    for swap in (False, True)
    for spare in (0, 3)
    for slots in (None, 3)
    if k or not swap
]


@pytest.mark.parametrize("ahead", CASES, ids=str)
@pytest.mark.parametrize("seed", range(4))
def test_no_token_is_older_than_the_bound_and_the_books_balance(tmp_path, ahead, seed):
    trained, _, _ = run(tmp_path, ahead, seed=seed)

    assert all(staleness.min() >= 0 for staleness in trained.staleness)
    assert max(staleness.max() for staleness in trained.staleness) <= ahead.max_staleness
    assert all(len(keys(batch)) == PROMPTS for batch in trained.batches)


@pytest.mark.parametrize("ahead", [one for one in CASES if not one.spare_prompts], ids=str)
def test_without_oversampling_prompts_are_trained_in_their_order_and_none_is_dropped(
    tmp_path, ahead
):
    trained, balance, _ = run(tmp_path, ahead)

    tasks = Cursor(Tasks(), 0, epochs=None).take(8 * PROMPTS)
    drawn = [(task.uid.epoch, task.uid.prompt) for task in tasks]
    assert [keys(batch) for batch in trained.batches] == [
        sorted(drawn[i : i + PROMPTS]) for i in range(0, len(drawn), PROMPTS)
    ]
    assert not balance.dropped


def test_generation_does_run_ahead(tmp_path):
    """Guards the tests above against a bound that is kept by never using it."""
    trained, _, _ = run(tmp_path, Ahead(max_staleness=2, in_flight_updates=True))

    assert max(staleness.max() for staleness in trained.staleness) == 2


def test_without_in_flight_updates_a_prompt_is_of_one_version(tmp_path):
    trained, _, engine = run(tmp_path, Ahead(max_staleness=2))

    assert engine.paused == 0
    assert max(staleness.max() for staleness in trained.staleness) > 0
    for batch in trained.batches:
        for group in range(PROMPTS):
            rows = batch.select(np.flatnonzero(batch.group == group))
            assert len(set(rows.weight_version.tolist())) == 1


def test_in_flight_updates_leave_responses_of_several_versions(tmp_path):
    trained, _, engine = run(tmp_path, Ahead(max_staleness=2, in_flight_updates=True))

    assert engine.paused > 0
    mixed = [
        row
        for batch in trained.batches
        for row in range(len(batch))
        if len(set(batch.select(np.array([row])).weight_version.tolist())) > 1
    ]
    assert mixed


def test_oversampling_takes_what_is_complete_first(tmp_path):
    usual, _, _ = run(tmp_path, Ahead())
    first, balance, _ = run(tmp_path, Ahead(spare_prompts=4))

    assert all(metrics["filter/dropped_groups/stale"] == 4 for metrics in first.metrics)
    assert balance.dropped.total() == 8 * 4 * SAMPLES
    # What is slow is what is long here, and it is left out.
    longest = [max(batch.num_actions.max() for batch in one.batches) for one in (usual, first)]
    assert longest[1] < longest[0]


def test_what_is_left_over_is_served_later_while_it_is_fresh_enough(tmp_path):
    """With room within the bound, oversampling throws nothing away but what has been slow for as many steps."""
    trained, balance, _ = run(tmp_path, Ahead(max_staleness=3, spare_prompts=2), steps=20)

    assert balance.dropped.total() < 20 * SAMPLES
    assert balance.trained.total() == 20 * PROMPTS * SAMPLES
    assert max(staleness.max() for staleness in trained.staleness) > 0


class KeepEven:
    def keep(self, group, info):
        return None if group.uid[0, 1] % 2 == 0 else "odd"


@pytest.mark.parametrize("ahead", CASES, ids=str)
def test_filtered_prompts_are_replaced(tmp_path, ahead):
    trained, _, _ = run(tmp_path, ahead, filters=[KeepEven()])

    for batch, metrics in zip(trained.batches, trained.metrics, strict=True):
        assert all(prompt % 2 == 0 for _, prompt in keys(batch))
        # Four draws do not always find four even prompts; what was found and what was filtered adds up.
        assert len(keys(batch)) <= PROMPTS
        assert metrics["filter/refills"] <= 3
    assert np.mean([len(keys(batch)) for batch in trained.batches]) > 3


def same_columns(one, other):
    left, right = one.arrays(), other.arrays()
    assert left.keys() == right.keys()
    for name, column in left.items():
        np.testing.assert_array_equal(column, right[name], err_msg=name)


@pytest.mark.parametrize("slots", [1, 3, None])
def test_on_policy_the_pool_gives_what_one_prompt_after_the_other_gives(tmp_path, slots):
    """Against a loop that knows neither pool nor queue."""
    trained, _, _ = run(tmp_path, Ahead(concurrency=slots), steps=3)

    cursor, engine = Cursor(Tasks(), 0, epochs=None), SteppingEngine()
    episodes = make_source(engine, Ahead(), 0)._episodes
    for version, batch in enumerate(trained.batches):
        engine.version = version
        expected = []
        for task in cursor.take(PROMPTS):
            played = asyncio.run(episodes.play(task, 1))
            (scored,) = asyncio.run(episodes.score([(task, played)], 1))
            expected += scored.trajectories
        same_columns(batch, type(batch).from_trajectories(expected))


def test_staleness_is_reported_token_by_token(tmp_path):
    trained, _, _ = run(tmp_path, Ahead(max_staleness=2, in_flight_updates=True))

    for staleness, metrics in zip(trained.staleness, trained.metrics, strict=True):
        assert metrics["rollout/staleness_mean"] == pytest.approx(staleness.mean())
        assert metrics["rollout/staleness_max"] == staleness.max()
        shares = [metrics[f"rollout/staleness_{age}"] for age in range(3)]
        assert shares == pytest.approx([(staleness == age).mean() for age in range(3)])
    on_policy, _, _ = run(tmp_path, Ahead(), seed=1)
    assert not any("staleness" in name for name in on_policy.metrics[0])


def test_the_same_is_in_flight_after_a_resume_and_the_books_balance(tmp_path):
    """Stop after step 3, note what was in flight, start anew from there: nothing is lost or trained twice."""
    ahead, path = Ahead(max_staleness=2, in_flight_updates=True), tmp_path / "ledger.jsonl"

    async def killed():
        engine = SteppingEngine()
        source = make_source(engine, ahead, 0)
        cursor = Cursor(Tasks(), 0, epochs=None)
        with closing(Ledger(path)) as ledger:
            for step in (1, 2, 3):
                await source.take(
                    step,
                    cursor,
                    PROMPTS,
                    max_refills=0,
                    version=0,
                    ledger=ledger,
                    steps_left=6 - step,
                )
            saved = source.in_flight, cursor.taken
            # Step 4 begins, and is killed.
            await source.take(
                4, cursor, PROMPTS, max_refills=0, version=0, ledger=ledger, steps_left=2
            )
            await source.close()
        return saved

    async def resumed(in_flight, taken):
        engine = SteppingEngine()
        engine.version = 3
        source = make_source(engine, ahead, 0)
        with closing(Ledger(path)) as ledger:
            ledger.resumed(3)
            source.restore([Tasks().task(prompt, epoch) for epoch, prompt in in_flight], 3, 3)
            cursor = Cursor(Tasks(), 0, epochs=None, taken=taken)
            return await train(engine, source, ledger, 6, 0, first=4, version=3, cursor=cursor)

    in_flight, taken = asyncio.run(killed())
    assert len(in_flight) == 2 * PROMPTS
    unsettled = {f"{epoch}.{prompt}" for epoch, prompt in in_flight}
    assert set(replay(path, up_to_step=3).unsettled()) == unsettled
    trained = asyncio.run(resumed(in_flight, taken))

    assert [key for batch in trained.batches[:2] for key in keys(batch)] == [
        *sorted(in_flight[:PROMPTS]),
        *sorted(in_flight[PROMPTS:]),
    ]
    balance = replay(path)
    assert balance.unsettled() == []
    assert set(balance.trained.values()) == {SAMPLES}
    assert balance.trained.total() == 6 * PROMPTS * SAMPLES


def test_the_ledger_names_the_oldest_version_of_each_prompt(tmp_path):
    run(tmp_path, Ahead(max_staleness=2, in_flight_updates=True))

    lines = map(json.loads, (tmp_path / "ledger.jsonl").read_text().splitlines())
    ages = [line["step"] - 1 - line["version"] for line in lines if line["event"] == "trained"]
    assert set(ages) <= {0, 1, 2}
    assert max(ages) == 2


def test_an_engine_that_serves_older_weights_than_it_was_given_is_noticed(tmp_path):
    class Forgetful(SteppingEngine):
        async def update_weights(self, version, source=None):
            pass

    async def play():
        engine = Forgetful()
        source = make_source(engine, Ahead(), 0)
        with closing(Ledger(tmp_path / "ledger.jsonl")) as ledger:
            await train(engine, source, ledger, 3, 0)

    with pytest.raises(
        RolloutError, match=r"sample 0\.\d+\.0\.0 has a token of weights 1 versions"
    ):
        asyncio.run(play())


def test_a_failing_prompt_ends_the_others_and_its_error_is_raised_as_it_is(tmp_path):
    class Broken(SteppingEngine):
        async def generate(self, request):
            if self.version == 1:
                raise RolloutError(f"{request.uid}: broken")
            return await super().generate(request)

    async def play():
        engine = Broken()
        source = make_source(engine, Ahead(max_staleness=2, in_flight_updates=True), 0)
        with closing(Ledger(tmp_path / "ledger.jsonl")) as ledger:
            with pytest.raises(RolloutError, match="broken"):
                await train(engine, source, ledger, 5, 0)
            await source.close()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(play())
