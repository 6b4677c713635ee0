"""Processes that die or hang: the run goes on without an engine, and ends with a reason without a rank."""

import asyncio
import os
import shutil
import signal

import numpy as np
import pytest
from tests.deadlines import HANG_S, PATIENT_S, until

from rlhf_core import RLHFError, RolloutError
from rlhf_core.contracts import RoleSpec
from rlhf_testing.errors import has_code

from .conftest import engine_pids, pid_of, request, sample, update_of

pytestmark = [pytest.mark.scale, pytest.mark.slow]

TWO = {"engines": 2, "colocate": ("policy+engine",)}


def completions_of(results):
    return [c.token_ids.tolist() for completions in results for c in completions]


async def ask_many(engine):
    return await asyncio.gather(*(engine.generate(request(n, tokens=40)) for n in range(12)))


def test_requests_of_an_engine_that_is_killed_are_served_by_another_with_the_same_seeds(
    placed, spec
):
    async def play():
        async with placed(spec(), **TWO) as run:
            expected = await ask_many(run.engine)
            first = engine_pids(run.engine)[0]
            os.kill(first, signal.SIGSTOP)  # so that it certainly dies with requests in progress
            asked = asyncio.create_task(ask_many(run.engine))
            await until(lambda: all(server.load for server in run.engine.crew.members))
            os.kill(first, signal.SIGKILL)
            async with asyncio.timeout(HANG_S):
                actual = await asked
            assert completions_of(actual) == completions_of(expected)

    asyncio.run(play())


def test_an_idle_engine_that_is_killed_is_missed_at_once_and_replaced_on_the_newest_weights(
    placed, spec
):
    async def play():
        async with placed(spec(), **TWO) as run:
            policy = run.roles["policy"]
            await policy.train_step(*update_of(await sample(run.engine)))
            await run.engine.update_weights(1, policy.weights())
            dead = engine_pids(run.engine)[1]
            os.kill(dead, signal.SIGKILL)
            async with asyncio.timeout(HANG_S):
                await until(lambda: dead not in engine_pids(run.engine))
            async with asyncio.timeout(HANG_S):
                await until(lambda: len(engine_pids(run.engine)) == 2)
            # The digest is compared between the engines, too.
            assert await run.engine.checksum() == await policy.checksum()
            results = await ask_many(run.engine)
            versions = {v for part in results for c in part for v in c.weight_version.tolist()}
            assert versions == {1}

    asyncio.run(play())


def test_the_only_engine_is_waited_for_while_it_is_started_anew(placed, spec):
    async def play():
        async with placed(spec()) as run:
            (before,) = engine_pids(run.engine)
            expected = await run.engine.generate(request())
            os.kill(before, signal.SIGKILL)
            await until(lambda: not engine_pids(run.engine))
            await run.engine.update_weights(4, run.roles["policy"].weights())
            actual = await run.engine.generate(request())
            assert engine_pids(run.engine) != [before]
            for a, b in zip(expected, actual, strict=True):
                np.testing.assert_array_equal(a.token_ids, b.token_ids)
                assert set(b.weight_version.tolist()) == {4}

    asyncio.run(play())


def test_without_restarts_the_last_engines_death_ends_the_request(placed, spec):
    async def play():
        async with placed(spec(), max_engine_restarts=0) as run:
            os.kill(engine_pids(run.engine)[0], signal.SIGKILL)
            with pytest.raises(
                RolloutError,
                match=r"0\.2\.0\.0: no engine is left; engine 0 .*died",
                check=has_code("ray/workers-lost"),
            ):
                async with asyncio.timeout(HANG_S):
                    await run.engine.generate(request(2))

    asyncio.run(play())


def test_an_engine_that_cannot_be_started_anew_uses_up_the_budget(
    placed, spec, model, tmp_path, caplog
):
    folder = tmp_path / "model"
    shutil.copytree(model, folder)

    async def play():
        async with placed(
            spec(folder=folder), max_engine_restarts=2, start_timeout_s=PATIENT_S
        ) as run:
            shutil.rmtree(folder)  # a new engine finds no model
            os.kill(engine_pids(run.engine)[0], signal.SIGKILL)
            with pytest.raises(
                RolloutError,
                match=r"no engine is left; .* could not be started",
                check=has_code("ray/workers-lost"),
            ):
                # Long before start_timeout_s: a failed process does not keep its successor's place.
                async with asyncio.timeout(HANG_S):
                    await run.engine.generate(request())

    asyncio.run(play())

    warnings = [record.message for record in caplog.records if "restart" in record.message]
    assert [
        text.endswith(f"({left} restarts left)")
        for left, text in zip((1, 0), warnings, strict=True)
    ] == [True, True]


def test_an_engine_that_hangs_is_taken_for_dead(placed, spec):
    async def play():
        async with placed(spec(), generate_timeout_s=15.0, **TWO) as run:
            await ask_many(run.engine)  # the first answer of a process takes longest
            expected = await run.engine.generate(request())
            # An idle router asks the first engine, which need not be the one that was ready first.
            asked = min(run.engine.crew.members, key=lambda member: member.index)
            hanging = pid_of(asked.process)
            os.kill(hanging, signal.SIGSTOP)
            async with asyncio.timeout(HANG_S):
                actual = await run.engine.generate(request())
            assert hanging not in engine_pids(run.engine)
            assert completions_of([actual]) == completions_of([expected])

    asyncio.run(play())


def test_an_engine_killed_while_weights_are_handed_over_is_left_out(placed, spec):
    async def play():
        async with placed(spec(), **TWO) as run:
            dead = engine_pids(run.engine)[0]
            os.kill(dead, signal.SIGSTOP)
            handed = asyncio.create_task(
                run.engine.update_weights(1, run.roles["policy"].weights())
            )
            await asyncio.sleep(0.1)
            os.kill(dead, signal.SIGKILL)
            async with asyncio.timeout(HANG_S):
                await handed
                await until(lambda: len(engine_pids(run.engine)) == 2)
            assert dead not in engine_pids(run.engine)
            assert await run.engine.checksum() == await run.roles["policy"].checksum()

    asyncio.run(play())


def test_the_only_engine_that_dies_of_new_weights_is_waited_for(placed, spec):
    """The loop asks for a digest next, which none can give meanwhile."""

    async def play():
        async with placed(spec()) as run:
            policy, (dead,) = run.roles["policy"], engine_pids(run.engine)
            await policy.train_step(*update_of(await sample(run.engine)))
            os.kill(dead, signal.SIGSTOP)
            handed = asyncio.create_task(run.engine.update_weights(1, policy.weights()))
            await asyncio.sleep(0.1)
            os.kill(dead, signal.SIGKILL)
            async with asyncio.timeout(HANG_S):
                await handed
            async with asyncio.timeout(HANG_S):
                assert await run.engine.checksum() == await policy.checksum()
            assert dead not in engine_pids(run.engine)

    asyncio.run(play())


def test_an_engine_that_joins_during_an_update_gets_the_new_weights(placed, spec):
    """It is being given the older ones when the update is asked for."""

    async def play():
        async with placed(spec(), **TWO) as run:
            policy, dead = run.roles["policy"], engine_pids(run.engine)[0]
            delivery = run.engine._delivery
            os.kill(dead, signal.SIGKILL)
            async with asyncio.timeout(HANG_S):
                await until(lambda: dead not in engine_pids(run.engine))
                while not delivery._lock.locked():
                    await asyncio.sleep(0)
            await run.engine.update_weights(1, policy.weights())
            async with asyncio.timeout(HANG_S):
                await until(lambda: len(engine_pids(run.engine)) == 2)
            results = await ask_many(run.engine)
            versions = {v for part in results for c in part for v in c.weight_version.tolist()}
            assert versions == {1}

    asyncio.run(play())


def test_a_request_that_arrives_during_an_update_is_served(placed, spec):
    """As the next turn of an episode does when weights are swapped under running ones."""

    async def play():
        async with placed(spec()) as run:
            (engine,) = engine_pids(run.engine)
            await run.engine.pause()
            os.kill(engine, signal.SIGSTOP)
            handed = asyncio.create_task(
                run.engine.update_weights(1, run.roles["policy"].weights())
            )
            await asyncio.sleep(0.5)
            asked = asyncio.create_task(run.engine.generate(request()))
            await asyncio.sleep(0.1)
            os.kill(engine, signal.SIGCONT)
            async with asyncio.timeout(HANG_S):
                await handed
                await run.engine.resume()
                assert len(await asked) == 3

    asyncio.run(play())


def test_a_cancelled_request_leaves_its_engine_idle(placed, spec):
    async def play():
        async with placed(spec()) as run:
            asked = asyncio.create_task(run.engine.generate(request(tokens=200)))
            await until(lambda: run.engine.crew.members[0].load)
            asked.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asked
            assert run.engine.crew.members[0].load == 0
            # An engine that still computed would refuse to be put to sleep.
            await asyncio.sleep(0.5)
            await run.engine.sleep()

    asyncio.run(play())


def test_a_rank_that_dies_while_it_computes_ends_the_call_with_a_reason(placed, spec):
    async def play():
        async with placed(spec()) as run:
            policy, batch = run.roles["policy"], await sample(run.engine)
            rank = pid_of(policy.ranks[0])
            os.kill(rank, signal.SIGSTOP)
            step = asyncio.create_task(policy.train_step(*update_of(batch)))
            await asyncio.sleep(0.1)
            os.kill(rank, signal.SIGKILL)
            with pytest.raises(
                RLHFError,
                match=r"policy rank 0 \(pid \d+ on .*\) died.*--resume auto continues",
                check=has_code("ray/process-lost"),
            ):
                async with asyncio.timeout(HANG_S):
                    await step

    asyncio.run(play())


def test_a_rank_that_dies_idle_ends_what_the_engines_are_doing(placed, spec):
    async def play():
        async with placed(spec()) as run:
            (engine,) = engine_pids(run.engine)
            os.kill(engine, signal.SIGSTOP)  # generation that would take forever
            asked = asyncio.create_task(run.engine.generate(request()))
            await until(lambda: run.engine.crew.members[0].load)
            os.kill(pid_of(run.roles["policy"].ranks[0]), signal.SIGKILL)
            with pytest.raises(
                RLHFError,
                match=r"policy rank 0 .*--resume auto continues",
                check=has_code("ray/process-lost"),
            ):
                async with asyncio.timeout(HANG_S):
                    await asked

    asyncio.run(play())


def test_one_of_two_ranks_that_dies_ends_the_wait_for_the_other(placed, spec):
    """The survivor waits in a collective for the dead one."""

    async def play():
        options = {"ranks": {"policy": 2}, "colocate": ("policy", "engine")}
        options["cpus_per"] = {"policy": 0.5, "engine": 0.5}
        async with placed(spec(backend="summing"), **options) as run:
            policy, batch = run.roles["policy"], await sample(run.engine)
            rank = pid_of(policy.ranks[1])
            os.kill(rank, signal.SIGSTOP)
            step = asyncio.create_task(policy.train_step(*update_of(batch)))
            await asyncio.sleep(0.2)
            os.kill(rank, signal.SIGKILL)
            # Not the survivor's broken connection, which may be known first.
            with pytest.raises(
                RLHFError,
                match=rf"policy rank 1 \(pid {rank} .*--resume auto",
                check=has_code("ray/process-lost"),
            ):
                async with asyncio.timeout(HANG_S):
                    await step

    asyncio.run(play())


def test_a_rank_that_hangs_misses_its_deadline(placed, spec, model):
    roles = {"reference": RoleSpec(role="reference", model_path=str(model))}

    async def play():
        async with placed(spec(backend="stuck", **roles), call_timeout_s=1.0) as run:
            batch = await sample(run.engine)
            with pytest.raises(
                RLHFError,
                match=r"reference rank 0 .* did not answer logprobs within 1 s",
                check=has_code("ray/process-lost"),
            ):
                async with asyncio.timeout(HANG_S):
                    await run.roles["reference"].logprobs(batch)

    asyncio.run(play())


def test_a_new_engine_makes_up_for_what_it_missed(placed, spec):
    """Paused and given new weights while one of two engines was dead."""

    async def play():
        async with placed(spec(), **TWO) as run:
            dead = engine_pids(run.engine)[0]
            os.kill(dead, signal.SIGKILL)
            await until(lambda: dead not in engine_pids(run.engine))
            policy = run.roles["policy"]
            await policy.train_step(*update_of(await sample(run.engine)))
            await run.engine.pause()
            await run.engine.update_weights(1, policy.weights())
            async with asyncio.timeout(HANG_S):
                await until(lambda: len(engine_pids(run.engine)) == 2)
            assert await run.engine.checksum() == await policy.checksum()
            await run.engine.resume()  # an engine that was not paused would refuse
            assert len(await ask_many(run.engine)) == 12

    asyncio.run(play())
