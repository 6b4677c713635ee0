"""The engine against the same model as Transformers runs it, one sequence at a time."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
import torch

from rlhf_core import RolloutError
from rlhf_core.contracts import Stop
from rlhf_testing.errors import has_code
from rlhf_weights import weights_digest

pytestmark = [pytest.mark.scale, pytest.mark.slow]

PROMPTS = ((5, 9, 12), (7,), tuple(range(30, 51)), (5, 9, 12, 40))
SEEDS = tuple(range(11, 19))
TOLERANCE = 1e-4
"""Nats, float32: measured are 4e-6 in thousands of tokens."""


@torch.no_grad()
def expected_logprobs(plain, prompt, token_ids, temperature=1.0, keep=None):
    """(A,) of a plain forward pass; ``keep`` truncates logits (A, V) as the sampler should."""
    tokens = torch.from_numpy(np.concatenate([prompt, token_ids]).astype(np.int64))
    logits = plain(tokens[None]).logits[0, len(prompt) - 1 : -1] / temperature
    if keep is not None:
        logits = logits.masked_fill(~keep(logits), -torch.inf)
    chosen = torch.from_numpy(token_ids.astype(np.int64))[:, None]
    return logits.log_softmax(-1).gather(1, chosen)[:, 0]


def largest(k):
    return lambda logits: logits >= logits.topk(k).values[:, -1:]


def likely(share):
    return lambda logits: logits.softmax(-1) >= share * logits.softmax(-1).amax(-1, keepdim=True)


@pytest.mark.parametrize(
    ("params", "keep"),
    [
        ({}, None),
        ({"temperature": 0.6}, None),
        ({"top_k": 5}, largest(5)),
        ({"min_p": 0.2, "temperature": 1.5}, likely(0.2)),
    ],
    ids=["plain", "cold", "top_k", "min_p"],
)
def test_log_probs_are_those_of_the_distribution_that_was_sampled(
    engine, run, make_request, plain, params, keep
):
    async def all_prompts():
        return await asyncio.gather(
            *(engine.generate(make_request(prompt, seeds=SEEDS, **params)) for prompt in PROMPTS)
        )

    temperature = params.get("temperature", 1.0)
    for prompt, rows in zip(PROMPTS, run(all_prompts()), strict=True):
        for row in rows:
            expected = expected_logprobs(plain, prompt, row.token_ids, temperature, keep)
            actual = torch.from_numpy(row.logprobs)
            torch.testing.assert_close(actual, expected, atol=TOLERANCE, rtol=0)


def test_a_seed_decides_the_tokens_whatever_else_is_running(engine, run, make_request):
    async def work():
        together = await asyncio.gather(
            *(engine.generate(make_request(prompt, seeds=SEEDS)) for prompt in PROMPTS)
        )
        alone = [
            [(await engine.generate(make_request(prompt, seeds=(seed,))))[0] for seed in SEEDS]
            for prompt in PROMPTS
        ]
        return together, alone

    together, alone = run(work())

    tokens = [[row.token_ids.tolist() for row in rows] for rows in together]
    assert tokens == [[row.token_ids.tolist() for row in rows] for rows in alone]
    assert len({tuple(row) for row in tokens[0]}) == len(SEEDS)


def test_end_of_sequence_is_kept_and_waits_for_the_minimum(engine, run, make_request):
    seeds = tuple(range(64))
    free = run(engine.generate(make_request((5, 9), seeds=seeds, max_new_tokens=300)))
    late = run(
        engine.generate(make_request((5, 9), seeds=seeds, max_new_tokens=300, min_new_tokens=20))
    )

    ended = [row for row in free if row.stop is Stop.EOS]
    assert ended
    assert min(len(row.token_ids) for row in ended) < 20
    for row in [*free, *late]:
        tokens = row.token_ids.tolist()
        assert 2 not in tokens[:-1]
        assert (tokens[-1] == 2) == (row.stop is Stop.EOS)
    # The 20 tokens before which none may end come first.
    assert min(len(row.token_ids) for row in late) > 20


def test_the_tokens_of_a_stop_string_stay(engine, run, make_request, folder):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    rows = run(
        engine.generate(make_request((5, 9), seeds=SEEDS, stop=("a", "7"), max_new_tokens=200))
    )

    stopped = [row for row in rows if row.stop is Stop.STRING]
    assert stopped
    for row in stopped:
        text = tokenizer.decode(row.token_ids.tolist())
        assert text[-1] in "a7"
        assert not {"a", "7"} & set(text[:-1])
        assert len(row.logprobs) == len(row.token_ids)


def test_the_digest_is_the_trainers_and_follows_its_weights(engine, run, plain, state, source_of):
    from rlhf_weights import weights_digest

    before = run(engine.checksum())
    changed = perturbed(state)
    run(engine.update_weights(3, source_of(changed)))
    after = run(engine.checksum())

    assert before == weights_digest(plain.state_dict().items())
    assert after == weights_digest(changed.items())
    assert after != before


def test_new_weights_are_served_at_once_also_for_prompts_seen_before(
    engine, run, make_request, plain, state, source_of
):
    """A prompt of more than a block of the KV cache, so that its keys and values are in the prefix cache."""
    prompt = tuple(5 + index % 60 for index in range(200))
    run(engine.generate(make_request(prompt)))
    changed = perturbed(state)
    run(engine.update_weights(3, source_of(changed)))

    (row,) = run(engine.generate(make_request(prompt)))

    assert set(row.weight_version.tolist()) == {3}
    original = dict(plain.state_dict())
    original = {name: tensor.clone() for name, tensor in original.items()}
    try:
        plain.load_state_dict(changed)
        expected = expected_logprobs(plain, prompt, row.token_ids)
    finally:
        plain.load_state_dict(original)
    stale = expected_logprobs(plain, prompt, row.token_ids)
    actual = torch.from_numpy(row.logprobs)
    torch.testing.assert_close(actual, expected, atol=TOLERANCE, rtol=0)
    assert float((actual - stale).abs().max()) > 100 * TOLERANCE


def test_a_weight_that_did_not_come_is_noticed_and_named(
    engine, run, make_request, state, source_of
):
    partial = {name: tensor for name, tensor in state.items() if name != "model.norm.weight"}

    with pytest.raises(
        RolloutError,
        match=r"the trainer sent nothing for model\.norm\.weight",
        check=has_code("engine/other-weights"),
    ):
        run(engine.update_weights(4, source_of(partial)))
    with pytest.raises(
        RolloutError, match="without a whole set of weights", check=has_code("engine/wrong-state")
    ):
        run(engine.generate(make_request((5,))))

    run(engine.update_weights(5, source_of(state)))
    (row,) = run(engine.generate(make_request((5,))))
    assert set(row.weight_version.tolist()) == {5}


@pytest.mark.parametrize(
    ("name", "tensor"),
    [("model.no_such.weight", torch.ones(3)), ("model.norm.weight", torch.ones(5))],
)
def test_a_weight_that_does_not_fit_is_refused(engine, run, state, source_of, name, tensor):
    with pytest.raises(RolloutError, match="update_weights", check=has_code("vllm/worker-failed")):
        run(engine.update_weights(4, source_of({**state, name: tensor})))


def test_a_tied_head_that_was_changed_alone_is_refused(engine, run, state, source_of):
    state["lm_head.weight"] = state["lm_head.weight"] + 1.0

    with pytest.raises(
        RolloutError, match=r"lm_head\.weight .* has no place", check=has_code("vllm/worker-failed")
    ):
        run(engine.update_weights(4, source_of(state)))


def test_weights_change_under_paused_requests_and_every_token_says_which(
    engine, run, make_request, plain, state, source_of
):
    from rlhf_plugin_vllm import compat

    changed = perturbed(state)
    prompt = (5, 9)

    async def work():
        call = asyncio.ensure_future(
            engine.generate(make_request(prompt, seeds=tuple(range(16)), max_new_tokens=900))
        )
        while not any(compat.tokens_so_far(engine._llm).values()):
            await asyncio.sleep(0.01)
        with pytest.raises(RolloutError, match="call pause", check=has_code("engine/wrong-state")):
            await engine.update_weights(1, source_of(changed))
        await engine.pause()
        await engine.update_weights(1, source_of(changed))
        await engine.resume()
        return await call

    rows = run(work())

    switched = [row for row in rows if set(row.weight_version.tolist()) == {0, 1}]
    assert switched
    original = {name: tensor.clone() for name, tensor in plain.state_dict().items()}
    for row in switched:
        at = int((row.weight_version == 0).sum())
        assert row.weight_version.tolist() == sorted(row.weight_version.tolist())
        older = expected_logprobs(plain, prompt, row.token_ids)[:at]
        plain.load_state_dict(changed)
        newer = expected_logprobs(plain, prompt, row.token_ids)[at:]
        plain.load_state_dict(original)
        expected = torch.cat([older, newer])
        torch.testing.assert_close(torch.from_numpy(row.logprobs), expected, atol=TOLERANCE, rtol=0)


def test_a_cancelled_call_leaves_nothing_running(engine, run, make_request):
    async def work():
        call = asyncio.ensure_future(
            engine.generate(make_request((5, 9), seeds=SEEDS, max_new_tokens=900))
        )
        await asyncio.sleep(0.2)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await engine.sleep()  # refused while anything is in flight
        with pytest.raises(
            RolloutError, match="the engine is asleep", check=has_code("engine/wrong-state")
        ):
            await engine.generate(make_request((5,)))
        await engine.wake()
        return await engine.generate(make_request((5,)))

    assert len(run(work())) == 1


def test_a_sleeping_engine_takes_new_weights_and_wakes_with_them(
    engine, run, plain, state, source_of, make_request
):
    """The update comes while vLLM's scheduler is stopped and the memory of its cache is away."""
    changed = perturbed(state)
    prompt = (5, 9, 11)

    async def work():
        await engine.update_weights(0, source_of(state))
        before = await engine.generate(make_request(prompt))
        await engine.sleep()
        await engine.update_weights(1, source_of(changed))
        asleep = await engine.checksum()
        with pytest.raises(
            RolloutError, match="the engine is asleep", check=has_code("engine/wrong-state")
        ):
            await engine.generate(make_request(prompt))
        await engine.wake()
        after = await engine.generate(make_request(prompt))
        await engine.sleep()  # a second round, without an update: level 1 keeps the weights
        await engine.wake()
        again = await engine.generate(make_request(prompt))
        digests = asleep, await engine.checksum()
        await engine.update_weights(2, source_of(state))
        return before, after, again, digests

    before, after, again, digests = run(work())

    assert digests == (weights_digest(changed.items()),) * 2
    assert set(after[0].weight_version.tolist()) == {1}
    assert after[0].logprobs.tolist() != before[0].logprobs.tolist()
    assert again[0].logprobs.tolist() == after[0].logprobs.tolist()
    original = {name: tensor.clone() for name, tensor in plain.state_dict().items()}
    plain.load_state_dict(changed)
    expected = expected_logprobs(plain, prompt, after[0].token_ids)
    plain.load_state_dict(original)
    torch.testing.assert_close(
        torch.from_numpy(after[0].logprobs.copy()), expected, atol=1e-4, rtol=0
    )


def test_start_is_refused_twice(engine, run, spec, state, source_of):
    with pytest.raises(
        RolloutError, match="start: the engine is serving", check=has_code("engine/wrong-state")
    ):
        run(engine.start(spec, source_of(state)))


def perturbed(state):
    """Other weights of the same kind; tied ones stay tied."""
    draw = torch.Generator().manual_seed(5)
    changed = {
        name: tensor + 0.05 * torch.randn(tensor.shape, generator=draw)
        for name, tensor in state.items()
    }
    changed["lm_head.weight"] = changed["model.embed_tokens.weight"]
    return changed
