"""Weights from a trainer's process straight to vLLM's workers, in this test from another thread."""

from __future__ import annotations

import asyncio

import pytest

from rlhf_core import RolloutError
from rlhf_testing.errors import has_code

pytestmark = [pytest.mark.scale, pytest.mark.slow]

PATHS = ["memory", "collective"]


@pytest.fixture
def link(state, engine, link_to):
    """A sender of the plain model's shapes, which the engine's workers have joined, by path."""
    return lambda path: link_to(engine, state, path)


def changed(state, by):
    return {name: tensor + by for name, tensor in state.items()}


@pytest.mark.parametrize("path", PATHS)
def test_what_is_served_is_what_was_sent_to_the_bit(
    engine, run, state, source_of, link, sync, make_request, path
):
    sender = link(path)
    for version, by in ((3, 0.01), (4, 0.02)):
        run(sync(sender, engine, changed(state, by), version))
        by_link = run(engine.checksum())
        (completion,) = run(engine.generate(make_request((5, 6, 7))))
        assert set(completion.weight_version.tolist()) == {version}

        run(engine.update_weights(version, source_of(changed(state, by))))
        assert by_link == run(engine.checksum())


def test_an_update_that_breaks_leaves_the_engine_silent_until_a_whole_one_comes(
    engine, run, state, source_of, link, sync, make_request
):
    sender = link("collective")

    async def broken():
        async def half():
            await sender.start(1)
            await sender.put(*next(iter(state.items())))
            sender.give_up("the trainer stopped")

        await asyncio.gather(half(), engine.receive_weights(1))

    with pytest.raises(
        RolloutError, match="weight link test", check=has_code("vllm/worker-failed")
    ):
        run(broken())
    with pytest.raises(
        RolloutError, match="without a whole set of weights", check=has_code("engine/wrong-state")
    ):
        run(engine.generate(make_request((5, 6, 7))))

    run(sync(link("memory"), engine, state, 2))  # a new link, in the place of the broken one
    assert len(run(engine.generate(make_request((5, 6, 7))))) == 1


def test_a_weight_that_does_not_fit_ends_the_update_at_both_ends(engine, run, state, link_to, sync):
    wrong = {name: tensor.flatten()[:1] for name, tensor in state.items()}
    sender = link_to(engine, wrong, "collective")

    ours, theirs = run(sync(sender, engine, wrong, 1, return_exceptions=True))

    assert isinstance(theirs, RolloutError), theirs
    assert "weight link test" in str(ours)
