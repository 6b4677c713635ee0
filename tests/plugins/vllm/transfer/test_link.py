"""Weights from a trainer's process straight to vLLM's workers, in this test from another thread."""

from __future__ import annotations

import asyncio

import pytest
import torch

from rlhf_core import RolloutError
from rlhf_core.weights import SendingLink, plan_weights

pytestmark = [
    pytest.mark.scale,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]

PATHS = ["memory", "collective"]


@pytest.fixture
def link(state, engine, run):
    """A sender of the plain model's shapes, which the engine's workers have joined, by path."""
    made = []

    async def join(path):
        places = await engine.receivers()
        sender = SendingLink(
            "test",
            plan=plan_weights([state], 1 << 18),
            path=path,
            num_receivers=len(places),
            device=torch.device("cpu"),
            host="127.0.0.1",
            timeout_s=20.0,
        )
        made.append(sender)
        await asyncio.gather(asyncio.to_thread(sender.connect), engine.join(sender.invitation))
        return sender

    yield lambda path: run(join(path))
    for sender in made:
        sender.close()


async def send(sender, state, version):
    await sender.start(version)
    for name, tensor in state.items():
        await sender.put(name, tensor)
    await sender.finish()


async def sync(sender, engine, state, version):
    await asyncio.gather(send(sender, state, version), engine.receive_weights(version))


def changed(state, by):
    return {name: tensor + by for name, tensor in state.items()}


@pytest.mark.parametrize("path", PATHS)
def test_what_is_served_is_what_was_sent_to_the_bit(
    engine, run, state, source_of, link, make_request, path
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
    engine, run, state, source_of, link, make_request
):
    sender = link("collective")

    async def broken():
        async def half():
            await sender.start(1)
            await sender.put(*next(iter(state.items())))
            sender.give_up("the trainer stopped")

        await asyncio.gather(half(), engine.receive_weights(1))

    with pytest.raises(RolloutError, match="weight link test"):
        run(broken())
    with pytest.raises(RolloutError, match="without a whole set of weights"):
        run(engine.generate(make_request((5, 6, 7))))

    run(sync(link("memory"), engine, state, 2))  # a new link, in the place of the broken one
    assert len(run(engine.generate(make_request((5, 6, 7))))) == 1


def test_a_weight_that_does_not_fit_ends_the_update_at_both_ends(engine, run, state, link):
    wrong = {name: tensor.flatten()[:1] for name, tensor in state.items()}
    sender = SendingLink(
        "test",
        plan=plan_weights([wrong], 1 << 18),
        path="collective",
        num_receivers=1,
        device=torch.device("cpu"),
        host="127.0.0.1",
        timeout_s=20.0,
    )

    async def play():
        await asyncio.gather(asyncio.to_thread(sender.connect), engine.join(sender.invitation))
        return await asyncio.gather(
            send(sender, wrong, 1), engine.receive_weights(1), return_exceptions=True
        )

    ours, theirs = run(play())
    sender.close()

    assert isinstance(theirs, RolloutError), theirs
    assert "weight link test" in str(ours)
