"""Shared and copied weights, and their checksum."""

from __future__ import annotations

import asyncio
import copy

import pytest
import torch

from rlhf_core import RolloutError
from rlhf_testing.errors import has_code
from rlhf_weights import weights_digest

PROMPT = (5, 6, 7, 8)


@pytest.fixture
def own(lm):
    """A model that the test may change."""
    return copy.deepcopy(lm)


def change(lm) -> None:
    with torch.no_grad():
        for parameter in lm.parameters():
            parameter.mul_(1.5)


async def first_of(engine, request):
    (completion,) = await engine.generate(request)
    return completion


def test_shared_weights_are_the_trainers_own_tensors(own, run, start, make_request, source_of):
    async def serve():
        engine = await start(own)
        before = await first_of(engine, make_request(PROMPT))
        change(own)
        await engine.update_weights(1, source_of(own))
        after = await first_of(engine, make_request(PROMPT))
        return before, after, await engine.checksum()

    before, after, checksum = run(serve())
    assert before.logprobs.tolist() != after.logprobs.tolist()
    assert checksum == weights_digest(own.model.state_dict().items())


def test_a_copy_keeps_its_weights_until_it_is_updated(own, run, start, make_request, source_of):
    async def serve():
        engine = await start(own, weights="copy")
        request = make_request(PROMPT, max_new_tokens=30)
        expected = await first_of(engine, request)
        task = asyncio.create_task(engine.generate(request))
        await asyncio.sleep(0)
        change(own)
        assert (await task)[0].logprobs.tolist() == expected.logprobs.tolist()
        assert await engine.checksum() != weights_digest(own.model.state_dict().items())
        await engine.update_weights(1, source_of(own))
        after = await first_of(engine, request)
        shared = await first_of(await start(own), request)
        return after, shared, await engine.checksum()

    after, shared, checksum = run(serve())
    assert after.logprobs.tolist() == shared.logprobs.tolist()
    assert checksum == weights_digest(own.model.state_dict().items())


def test_a_source_in_another_process_is_copied_from_its_buckets(
    own, run, start, make_request, source_of
):
    change(own)

    async def serve():
        engine = await start(None, source=source_of(None, own.model.state_dict()))
        return await engine.checksum()

    assert run(serve()) == weights_digest(own.model.state_dict().items())


def test_one_of_two_tied_names_is_enough(own, run, start, source_of):
    state = {name: t for name, t in own.model.state_dict().items() if name != "lm_head.weight"}

    async def serve():
        engine = await start(None, source=source_of(None, state))
        return await engine.checksum()

    assert run(serve()) == weights_digest(own.model.state_dict().items())


def test_training_under_running_requests_is_noticed(
    own, run, start, make_request, one_token_bursts
):
    async def serve():
        engine = await start(own)
        task = asyncio.create_task(engine.generate(make_request(PROMPT, max_new_tokens=50)))
        for _ in range(5):
            await asyncio.sleep(0)
        change(own)
        with pytest.raises(
            RolloutError,
            match="weights changed under running requests",
            check=has_code("engine/request-failed"),
        ):
            await task

    run(serve())


@pytest.mark.parametrize(
    ("spoil", "message", "code"),
    [
        (
            lambda state: state.pop("model.norm.weight"),
            "sent no model.norm.weight",
            "engine/weights-missing",
        ),
        (
            lambda state: state.update(extra=torch.zeros(2)),
            "weight extra of shape",
            "engine/weights-of-other-shape",
        ),
        (
            lambda state: state.update({"model.norm.weight": torch.zeros(3)}),
            r"shape \(3,\)",
            "engine/weights-of-other-shape",
        ),
    ],
)
def test_weights_of_another_model_are_refused(spoil, message, own, run, start, source_of, code):
    state = dict(own.model.state_dict())
    spoil(state)

    with pytest.raises(RolloutError, match=message, check=has_code(code)):
        run(start(None, source=source_of(None, state)))


def test_a_shared_engine_refuses_a_source_without_a_module(own, run, start, source_of):
    async def update():
        engine = await start(own)
        with pytest.raises(
            RolloutError, match="no module in this process", check=has_code("engine/other-module")
        ):
            await engine.update_weights(1, source_of(None, own.model.state_dict()))

    run(update())


def test_precast_weights_give_the_bits_of_autocast_and_follow_updates(
    own, run, start, make_request, source_of, monkeypatch
):
    from rlhf_plugin_local.engine import weights
    from rlhf_torch.models.modeling import CausalLM

    original = copy.deepcopy(own.model.state_dict())
    low = CausalLM(own.model, torch.bfloat16)
    request = make_request(PROMPT, seeds=(1, 2), max_new_tokens=20)

    async def serve():
        engine = await start(low)
        first = await engine.generate(request)
        change(low)
        await engine.update_weights(1, source_of(low))
        updated = await engine.generate(request)
        change(low)
        unannounced = await engine.generate(request)
        return first, updated, unannounced

    precast = run(serve())
    own.model.load_state_dict(original)
    monkeypatch.setattr(weights, "_precast", lambda *_, own: None)
    plain = run(serve())

    for one, other in zip(precast, plain, strict=True):
        for actual, expected in zip(one, other, strict=True):
            assert actual.token_ids.tolist() == expected.token_ids.tolist()
            assert actual.logprobs.tolist() == expected.logprobs.tolist()
    assert precast[0][0].logprobs.tolist() != precast[1][0].logprobs.tolist()
    assert precast[1][0].logprobs.tolist() != precast[2][0].logprobs.tolist()


def test_precast_keeps_the_original_as_it_was(own):
    from rlhf_plugin_local.engine.precast import Precast
    from rlhf_torch.models.modeling import CausalLM

    low = CausalLM(own.model, torch.bfloat16)
    before = {name: (t.data_ptr(), t.dtype) for name, t in low.model.state_dict().items()}

    precast = Precast(low)

    assert {n: (t.data_ptr(), t.dtype) for n, t in low.model.state_dict().items()} == before
    state = precast.lm.model.state_dict()
    assert state["model.norm.weight"].data_ptr() == before["model.norm.weight"][0]
    assert state["model.layers.0.mlp.up_proj.weight"].dtype == torch.bfloat16
    assert state["model.embed_tokens.weight"].dtype == torch.float32
