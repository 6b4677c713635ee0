"""Generation that runs ahead of training: what the ledger says, what a resume finds, and what ends a run."""

import asyncio
import json
from contextlib import closing

import pytest

from rlhf_core.errors import RolloutError
from rlhf_testing.errors import has_code
from rlhf_trainer.durable.records import Ledger, RunningDigest, replay
from rlhf_trainer.rollouts.prompts import Cursor
from rlhf_trainer.rollouts.source import Ahead


def test_the_same_is_in_flight_after_a_resume_and_the_books_balance(stepping, tmp_path):
    """Stop after step 3, note what was in flight, start anew from there: nothing is lost or trained twice."""
    ahead, path = Ahead(max_staleness=2, in_flight_updates=True), tmp_path / "ledger.jsonl"

    async def killed():
        engine = stepping.SteppingEngine()
        source = stepping.make_source(engine, ahead, 0)
        cursor = Cursor(stepping.Tasks(), 0, epochs=None)
        with closing(Ledger(path)) as ledger:
            for step in (1, 2, 3):
                await source.take(
                    step,
                    cursor,
                    stepping.PROMPTS,
                    max_refills=0,
                    version=0,
                    ledger=ledger,
                    steps_left=6 - step,
                )
            saved = source.in_flight, cursor.taken, ledger.extent.num_bytes
            # Step 4 begins, and is killed.
            await source.take(
                4, cursor, stepping.PROMPTS, max_refills=0, version=0, ledger=ledger, steps_left=2
            )
            await source.close()
        return saved

    async def resumed(in_flight, taken, begun):
        engine = stepping.SteppingEngine()
        engine.version = 3
        source = stepping.make_source(engine, ahead, 0)
        with closing(Ledger(path, begun)) as ledger:
            ledger.resumed(3)
            source.restore(
                [stepping.Tasks().task(prompt, epoch) for epoch, prompt in in_flight], 3, 3
            )
            cursor = Cursor(stepping.Tasks(), 0, epochs=None, taken=taken)
            return await stepping.train(
                engine, source, ledger, 6, 0, first=4, version=3, cursor=cursor
            )

    in_flight, taken, num_bytes = asyncio.run(killed())
    assert len(in_flight) == 2 * stepping.PROMPTS
    unsettled = {f"{epoch}.{prompt}" for epoch, prompt in in_flight}
    assert set(replay(path, num_bytes=num_bytes).unsettled()) == unsettled
    begun = RunningDigest()
    begun.add_file(path, up_to=num_bytes)
    trained = asyncio.run(resumed(in_flight, taken, begun))

    assert [key for batch in trained.batches[:2] for key in stepping.keys(batch)] == [
        *sorted(in_flight[: stepping.PROMPTS]),
        *sorted(in_flight[stepping.PROMPTS :]),
    ]
    balance = replay(path)
    assert balance.unsettled() == []
    assert set(balance.trained.values()) == {stepping.SAMPLES}
    assert balance.trained.total() == 6 * stepping.PROMPTS * stepping.SAMPLES


def test_the_ledger_names_the_oldest_version_of_each_prompt(stepping, tmp_path):
    stepping.run(tmp_path, Ahead(max_staleness=2, in_flight_updates=True))

    lines = map(json.loads, (tmp_path / "ledger.jsonl").read_text().splitlines())
    ages = [line["step"] - 1 - line["version"] for line in lines if line["event"] == "trained"]
    assert set(ages) <= {0, 1, 2}
    assert max(ages) == 2


def test_an_engine_that_serves_older_weights_than_it_was_given_is_noticed(stepping, tmp_path):
    class Forgetful(stepping.SteppingEngine):
        async def update_weights(self, version, source=None):
            pass

    async def play():
        engine = Forgetful()
        source = stepping.make_source(engine, Ahead(), 0)
        with closing(Ledger(tmp_path / "ledger.jsonl")) as ledger:
            await stepping.train(engine, source, ledger, 3, 0)

    with pytest.raises(
        RolloutError,
        match=r"sample 0\.\d+\.0\.0 has a token of weights 1 versions",
        check=has_code("rollout/stale-weights"),
    ):
        asyncio.run(play())


def test_a_failing_prompt_ends_the_others_and_its_error_is_raised_as_it_is(stepping, tmp_path):
    class Broken(stepping.SteppingEngine):
        async def generate(self, request):
            if self.version == 1:
                raise RolloutError(f"{request.uid}: broken")
            return await super().generate(request)

    async def play():
        engine = Broken()
        source = stepping.make_source(engine, Ahead(max_staleness=2, in_flight_updates=True), 0)
        with closing(Ledger(tmp_path / "ledger.jsonl")) as ledger:
            with pytest.raises(RolloutError, match="broken", check=has_code("rollout/failed")):
                await stepping.train(engine, source, ledger, 5, 0)
            await source.close()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(play())
