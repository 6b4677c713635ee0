"""The comparison of what an engine serves with what the trainer has."""

import asyncio
from types import SimpleNamespace

import pytest
from tests.deadlines import HANG_S

from rlhf_core import RolloutError
from rlhf_testing.errors import has_code
from rlhf_trainer.rollouts.source import check_served_weights


def engine_with(digest, *, shares=False):
    async def checksum():
        return digest

    return SimpleNamespace(checksum=checksum, shares_weights=shares)


def check(engine, trainer="abc"):
    asyncio.run(check_served_weights(engine, engine_with(trainer), version=3))


def test_equal_digests_pass():
    check(engine_with("abc"))


def test_stale_weights_end_the_run_with_the_version_and_both_digests():
    with pytest.raises(
        RolloutError,
        match=r"version 3 .*\(digest old\).*\(abc\)",
        check=has_code("engine/serves-other-weights"),
    ):
        check(engine_with("old"))


def test_an_engine_that_cannot_tell_passes():
    check(engine_with(None))


def test_shared_tensors_are_not_compared():
    check(engine_with("anything", shares=True))


def test_an_error_of_the_trainer_is_not_hidden_by_the_engines_answer():
    async def broken():
        raise ValueError("no digest")

    policy = SimpleNamespace(checksum=broken)
    with pytest.raises(ValueError, match="no digest"):
        asyncio.run(check_served_weights(engine_with("abc"), policy, version=1))


def test_both_ends_take_their_digests_at_the_same_time():
    begun = []

    def end(name):
        async def checksum():
            begun.append(name)
            async with asyncio.timeout(HANG_S):
                while len(begun) < 2:
                    await asyncio.sleep(0)
            return "abc"

        return SimpleNamespace(checksum=checksum, shares_weights=False)

    asyncio.run(check_served_weights(end("engine"), end("trainer"), version=1))

    assert begun == ["engine", "trainer"]
