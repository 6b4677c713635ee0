"""Weights from rank to engine without the object store: to the bit, by memory and by a gloo group, whoever dies."""

import asyncio
import os
import signal

import pytest
from tests.deadlines import HANG_S, until

from rlhf_core import RolloutError
from rlhf_testing.errors import has_code

from .conftest import engine_pids, request, sample, update_of

pytestmark = [pytest.mark.scale, pytest.mark.slow]

DIRECT = ["memory", "collective"]
TWO = {"engines": 2, "colocate": ("policy+engine",)}


async def versions_of(engine):
    results = await asyncio.gather(*(engine.generate(request(n)) for n in range(8)))
    return {v for part in results for c in part for v in c.weight_version.tolist()}


async def train(run):
    policy = run.roles["policy"]
    await policy.train_step(*update_of(await sample(run.engine)))
    return policy


def link_names(run):
    return [link.name for link in run.engine._delivery.links.standing]


@pytest.mark.parametrize("weights", DIRECT)
def test_two_engines_serve_what_was_trained_to_the_bit(placed, spec, weights):
    async def play():
        async with placed(spec(), weights=weights, bucket_mib=1, **TWO) as run:
            before, names = await run.engine.checksum(), []
            assert before == await run.roles["policy"].checksum()
            for version in (1, 2):
                policy = await train(run)
                sync = await run.engine.update_weights(version, policy.weights())
                assert sync.num_bytes > 0
                assert await run.engine.checksum() == await policy.checksum() != before
                assert await versions_of(run.engine) == {version}
                names.append(link_names(run))
            # The first update forms a link to both engines; the second one has it already.
            assert len(names[0]) == 1
            assert weights in names[0][0]
            assert names[1] == names[0]

    asyncio.run(play())


@pytest.mark.parametrize("weights", DIRECT)
def test_two_ranks_send_what_they_gather_together(placed, spec, weights):
    """Every rank takes part in the gathering, also one without a link."""
    options = {"ranks": {"policy": 2}, "colocate": ("policy", "engine"), "weights": weights}
    options["cpus_per"] = {"policy": 0.5, "engine": 0.5}

    async def play():
        async with placed(spec(backend="summing"), **options) as run:
            policy = await train(run)
            await run.engine.update_weights(1, policy.weights())
            assert await run.engine.checksum() == await policy.checksum()

    asyncio.run(play())


@pytest.mark.parametrize("weights", DIRECT)
def test_an_engine_killed_while_it_takes_weights_is_left_out_and_joins_again(placed, spec, weights):
    async def play():
        async with placed(spec(), weights=weights, bucket_mib=1, **TWO) as run:
            await run.engine.update_weights(1, run.roles["policy"].weights())
            (name,) = link_names(run)
            policy = await train(run)
            dead, well = engine_pids(run.engine)
            os.kill(dead, signal.SIGSTOP)  # so that it certainly dies in the middle
            update = asyncio.create_task(run.engine.update_weights(2, policy.weights()))
            await asyncio.sleep(0.5)
            assert not update.done()
            os.kill(dead, signal.SIGKILL)
            async with asyncio.timeout(HANG_S):
                await update
            assert engine_pids(run.engine) == [well]
            assert await versions_of(run.engine) == {2}
            async with asyncio.timeout(HANG_S):
                await until(lambda: len(engine_pids(run.engine)) == 2)
            assert await run.engine.checksum() == await policy.checksum()
            policy = await train(run)
            await run.engine.update_weights(3, policy.weights())
            assert await run.engine.checksum() == await policy.checksum()
            assert await versions_of(run.engine) == {3}
            assert name not in link_names(run)

    asyncio.run(play())


def test_an_engine_that_hangs_while_it_takes_weights_is_replaced_after_the_deadline(placed, spec):
    async def play():
        options = {"weights": "collective", "sync_timeout_s": 20.0, **TWO}
        async with placed(spec(), **options) as run:
            await run.engine.update_weights(1, run.roles["policy"].weights())
            policy = await train(run)
            hanging, well = engine_pids(run.engine)
            os.kill(hanging, signal.SIGSTOP)
            try:
                async with asyncio.timeout(HANG_S):
                    await run.engine.update_weights(2, policy.weights())
                assert hanging not in engine_pids(run.engine)
                assert well in engine_pids(run.engine)
                assert await versions_of(run.engine) == {2}
            finally:
                os.kill(hanging, signal.SIGKILL)

    asyncio.run(play())


def test_an_engine_whose_weights_are_gone_waits_for_the_next_ones(placed, spec):
    """The trainer went on meanwhile, and what is in the middle of a step must not be served."""

    async def play():
        async with placed(spec(), weights="memory", **TWO) as run:
            policy = await train(run)
            dead, well = engine_pids(run.engine)
            os.kill(dead, signal.SIGKILL)
            await until(lambda: dead not in engine_pids(run.engine))
            await asyncio.sleep(8)  # longer than a start takes
            assert engine_pids(run.engine) == [well]
            assert await versions_of(run.engine) == {0}
            await run.engine.update_weights(1, policy.weights())
            async with asyncio.timeout(HANG_S):
                await until(lambda: len(engine_pids(run.engine)) == 2)
            assert await run.engine.checksum() == await policy.checksum()
            assert await versions_of(run.engine) == {1}

    asyncio.run(play())


@pytest.mark.parametrize("weights", ["store", "memory"])
def test_older_weights_than_those_served_are_refused(placed, spec, weights):
    async def play():
        async with placed(spec(), weights=weights) as run:
            policy = run.roles["policy"]
            await run.engine.update_weights(5, policy.weights())
            with pytest.raises(
                RolloutError,
                match="version 4 arrived after those of version 5",
                check=has_code("engine/other-weights"),
            ):
                await run.engine.update_weights(4, policy.weights())
            # The engine's process refuses by itself, too: a late message must not win.
            (member,) = run.engine.crew.members
            method = "receive" if weights == "memory" else "take"
            argument = 4
            if weights == "store":
                async with policy.held():
                    argument = await policy.publish(4)
            with pytest.raises(
                RolloutError,
                match="version 4 arrived after those of version 5",
                check=has_code("engine/other-weights"),
            ):
                await run.engine._delivery._ask(member.process, method, argument)
            assert await versions_of(run.engine) == {5}

    asyncio.run(play())


def test_without_a_gpu_the_object_store_is_the_way(placed, spec, caplog):
    async def play():
        async with placed(spec()) as run:
            await run.engine.update_weights(1, run.roles["policy"].weights())
            assert link_names(run) == []
            assert await run.engine.checksum() == await run.roles["policy"].checksum()

    with caplog.at_level("INFO"):
        asyncio.run(play())
    assert "gets weights by the object store" in caplog.text
    assert "1 engines" in caplog.text
