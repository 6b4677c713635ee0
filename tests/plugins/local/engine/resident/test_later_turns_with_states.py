"""A later turn of a model that carries a state goes on from the state behind its history, with the same numbers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import numpy as np
import pytest
import torch

from rlhf_plugin_local.engine.cache import round_up
from rlhf_plugin_local.engine.prefill import PackedPrompts
from rlhf_plugin_local.engine.resident import bursts
from rlhf_plugin_local.engine.resident.pages import PAGE
from rlhf_plugin_local.engine.resident.sizing import GIB, page_bytes
from rlhf_testing.tiny import tiny_tokenizer
from rlhf_torch.models.loading import load_causal_lm
from rlhf_torch.models.modeling import CausalLM

FAMILIES = ["qwen3_5_text", "qwen3_next", "olmo_hybrid", "lfm2"]
ROUNDING = 1e-5
"""Bound of what a kept state and one computed anew may give apart, in nats."""
OF_ANOTHER_PASS = 1e-4
"""The same for one pass over all tokens, whose products are summed in another order."""
STATE_INPUTS = ("in_proj_qkv", "linear_attn.q_proj", "linear_attn.k_proj", "conv1d")
PROMPT = tuple(range(4, 54))
OBSERVATION = (9, 8, 7)
WAVE = 8
"""Tokens of a wave are a multiple of it for each prompt."""


@pytest.fixture(scope="module")
def carrying(model_folder) -> Callable[[str], CausalLM]:
    """The model of a family. What its states are made of is enlarged: keys are divided by their lengths, and rounding
    with them where they are small."""
    models: dict[str, CausalLM] = {}

    def lm(family: str) -> CausalLM:
        if family not in models:
            models[family] = load_causal_lm(str(model_folder(family)), dtype="float32")
            with torch.no_grad():
                for name, parameter in models[family].named_parameters():
                    if any(part in name for part in STATE_INPUTS):
                        parameter.mul_(10.0)
        return models[family]

    return lm


@pytest.fixture
def sizes(monkeypatch) -> list[int]:
    """Tokens of each pass of the model."""
    found: list[int] = []
    hidden = CausalLM.hidden

    def watched(self, ids, *others):
        found.append(len(ids))
        return hidden(self, ids, *others)

    monkeypatch.setattr(CausalLM, "hidden", watched)
    return found


@pytest.fixture
def own_logprobs(full_logits):
    """Log-probs of a completion's tokens from one pass without a cache."""

    def compute(lm, prompt, completion) -> np.ndarray:
        logprobs = full_logits(lm, prompt, completion).log_softmax(-1)
        chosen = torch.tensor(completion.token_ids, dtype=torch.int64)
        return logprobs.gather(1, chosen[:, None])[:, 0].numpy()

    return compute


def went_on(prompt, completion, observation=OBSERVATION):
    return (*prompt, *completion.token_ids.tolist(), *observation)


def same(one, other) -> None:
    assert one.token_ids.tolist() == other.token_ids.tolist()
    np.testing.assert_allclose(one.logprobs, other.logprobs, atol=ROUNDING)


def no_page_is_lost(batch) -> bool:
    return batch._pool.num_free + batch._histories.num_pages == batch._pool.num_pages - 1


@pytest.mark.parametrize("family", FAMILIES)
def test_a_later_turn_computes_only_what_is_new(
    family, carrying, run, start, make_request, sizes, own_logprobs
):
    lm = carrying(family)

    async def episode(engine):
        prompt, written = PROMPT, []
        for turn in range(4):
            request = make_request(prompt, seeds=(turn, 7), max_new_tokens=45, number=turn)
            sizes.clear()
            completions = await engine.generate(request)
            written.append((prompt, sizes[0], completions))
            # One token is shorter than the taps of a convolution; and a turn may be gone on from without one.
            prompt = went_on(prompt, completions[turn % 2], OBSERVATION[: 3 - turn])
        return written, engine._batch

    async def both():
        kept, batch = await episode(await start(lm, family=family, max_length=300))
        anew, _ = await episode(
            await start(lm, family=family, max_length=300, share_prefixes=False)
        )
        return kept, anew, batch

    kept, anew, batch = run(both())

    # The last token of a turn has not been read.
    new = [len(PROMPT), 4, 3, 2]
    assert [size for _, size, _ in kept] == [round_up(count, WAVE) for count in new]
    assert [size for _, size, _ in anew] == [
        2 * round_up(len(prompt), WAVE) for prompt, _, _ in anew
    ]
    for (prompt, _, own), (_, _, others) in zip(kept, anew, strict=True):
        for one, other in zip(own, others, strict=True):
            same(one, other)
            np.testing.assert_allclose(
                one.logprobs, own_logprobs(lm, prompt, one), atol=OF_ANOTHER_PASS
            )
    assert no_page_is_lost(batch)


@pytest.mark.parametrize("family", ["qwen3_5_text", "lfm2"])
def test_no_history_gives_way_where_every_slot_has_a_conversation(
    family, carrying, run, start, make_request, sizes
):
    """Each of six conversations has two samples and fills its slots to the last page."""
    turns, long = 4, tuple(4 + place % 90 for place in range(2 * PAGE - 20))

    async def conversations():
        engine = await start(
            carrying(family),
            family=family,
            max_length=len(long) + 1 + turns * 40,
            slots=12,
            max_concurrency=12,
        )
        prompts, computed = [(*long, number + 4) for number in range(6)], []
        for turn in range(turns):
            sizes.clear()
            requests = [
                make_request(prompt, seeds=(turn, 7), max_new_tokens=37, number=10 * turn + number)
                for number, prompt in enumerate(prompts)
            ]
            answers = await asyncio.gather(*map(engine.generate, requests))
            computed.append(sum(size for size in sizes if size > round_up(12, WAVE)))
            prompts = [
                went_on(prompt, completions[turn % 2])
                for prompt, completions in zip(prompts, answers, strict=True)
            ]
        return computed

    first, *later = run(conversations())

    assert first == 6 * round_up(len(long) + 1, WAVE)
    assert later == 3 * [6 * round_up(4, WAVE)]


@pytest.mark.parametrize(
    ("family", "together"), [("qwen3_5_text", False), ("qwen3_5_text", True), ("lfm2", True)]
)
def test_each_continuation_of_a_history_has_a_state_of_its_own(
    family, together, carrying, run, start, make_request, sizes, monkeypatch
):
    """Beside each other, after each other, and beside a prompt without a history.

    Each length is a call of its own, as on a CPU, or all are one, as on a GPU.
    """
    if together:
        monkeypatch.setattr(PackedPrompts, "computed_together", lambda own: [own.padded_lengths])
    lm = carrying(family)
    others = [(9,), (8, 7, 6), tuple(range(30, 50)), ()]

    async def forks(engine):
        (first,) = await engine.generate(make_request(PROMPT, max_new_tokens=30))
        prompts = [went_on(PROMPT, first, other) for other in others] + [tuple(range(60, 90))]
        requests = [
            make_request(prompt, number=number, seeds=(number, 9), max_new_tokens=10 + number)
            for number, prompt in enumerate(prompts)
        ]
        sizes.clear()
        at_once = await asyncio.gather(*(engine.generate(request) for request in requests))
        size = sizes[0]
        later = [await engine.generate(request) for request in requests]
        return at_once, later, size

    async def both():
        kept = await forks(await start(lm, family=family))
        anew = await forks(await start(lm, family=family, share_prefixes=False))
        return kept, anew

    (at_once, later, size), (expected, _, _) = run(both())

    assert size == sum(round_up(len(other) + 1, WAVE) for other in others) + 32
    for found in (at_once, later):
        for own, wanted in zip(found, expected, strict=True):
            for one, other in zip(own, wanted, strict=True):
                same(one, other)


def test_a_row_that_ends_within_a_burst_leaves_the_state_behind_its_own_tokens(
    carrying, run, start, make_request, sizes, monkeypatch
):
    monkeypatch.setattr(bursts, "FEWEST", 50)
    monkeypatch.setattr(bursts, "MOST", 50)
    lm = carrying("qwen3_5_text")

    async def episode(engine):
        short, _ = await asyncio.gather(
            engine.generate(make_request(PROMPT, max_new_tokens=5)),
            engine.generate(make_request((5, 6, 7), max_new_tokens=40, number=1)),
        )
        sizes.clear()
        later = await engine.generate(make_request(went_on(PROMPT, short[0]), number=2))
        return [*short, *later], sizes[0]

    async def both():
        kept = await episode(await start(lm, family="qwen3_5_text"))
        anew = await episode(await start(lm, family="qwen3_5_text", share_prefixes=False))
        return kept, anew

    (own, size), (expected, _) = run(both())

    assert size == WAVE
    for one, other in zip(own, expected, strict=True):
        same(one, other)


def test_a_turn_that_a_stop_string_cut_within_a_burst_is_gone_on_from_behind_its_prompt(
    carrying, run, start, make_request, sizes, monkeypatch
):
    monkeypatch.setattr(bursts, "FEWEST", 50)
    monkeypatch.setattr(bursts, "MOST", 50)
    lm = carrying("qwen3_5_text")

    async def episode(engine):
        (free,) = await engine.generate(make_request(PROMPT[:40], max_new_tokens=30))
        text = tiny_tokenizer(family="qwen3_5_text").decode(free.token_ids)
        sampled = make_request(PROMPT[:40], max_new_tokens=30, stop=(text[7:9],), number=1)
        (cut,) = await engine.generate(sampled)
        sizes.clear()
        later = make_request(went_on(PROMPT[:40], cut), number=2, seeds=(1, 2))
        return [free, cut, *await engine.generate(later)], sizes[0], engine._batch

    async def both():
        kept = await episode(await start(lm, family="qwen3_5_text"))
        anew = await episode(await start(lm, family="qwen3_5_text", share_prefixes=False))
        return kept, anew

    ((free, cut, *later), size, batch), (expected, _, _) = run(both())

    assert 1 < len(cut.token_ids) < len(free.token_ids)
    assert size == round_up(len(cut.token_ids) + len(OBSERVATION), WAVE)
    for one, other in zip([free, cut, *later], expected, strict=True):
        same(one, other)
    assert no_page_is_lost(batch)


@pytest.mark.parametrize("place", [0, 30, 54, 61])
def test_a_history_with_another_token_is_computed_anew(
    place, carrying, run, start, make_request, sizes, own_logprobs
):
    lm = carrying("qwen3_5_text")

    async def changed():
        engine = await start(lm, family="qwen3_5_text")
        (first,) = await engine.generate(make_request(PROMPT, max_new_tokens=13))
        prompt = list(went_on(PROMPT, first))
        prompt[place] = 3 + (prompt[place] == 3)
        sizes.clear()
        (second,) = await engine.generate(make_request(tuple(prompt), number=1))
        return tuple(prompt), second, sizes[0]

    prompt, second, size = run(changed())

    assert size == round_up(len(prompt), WAVE)
    np.testing.assert_allclose(
        second.logprobs, own_logprobs(lm, prompt, second), atol=OF_ANOTHER_PASS
    )


def test_states_of_other_weights_are_given_up(carrying, run, start, make_request, source_of, sizes):
    lm = carrying("qwen3_5_text")

    async def updated():
        engine = await start(lm, family="qwen3_5_text")
        (first,) = await engine.generate(make_request(PROMPT))
        await engine.update_weights(1, source_of(lm))
        sizes.clear()
        await engine.generate(make_request(went_on(PROMPT, first), number=1))
        return sizes[0], engine._batch

    size, batch = run(updated())

    assert size == round_up(len(PROMPT) + 12 + len(OBSERVATION), WAVE)
    assert no_page_is_lost(batch)


def test_histories_give_way_to_sequences_and_are_computed_anew(
    carrying, run, start, make_request, own_logprobs
):
    """With few pages most are evicted; all log-probs stay right, and no page is lost or has bytes of a state."""
    lm = carrying("qwen3_5_text")
    gib = 11 * page_bytes(lm) / GIB

    async def many():
        engine = await start(lm, family="qwen3_5_text", kv_cache_gib=gib, max_length=192, slots=4)
        prompts, written, fewest = [(*PROMPT[: 40 + n], n + 4) for n in range(6)], [], []
        for _ in range(3):
            completions = await asyncio.gather(
                *(
                    engine.generate(make_request(prompt, number=n, max_new_tokens=10 + 4 * n))
                    for n, prompt in enumerate(prompts)
                )
            )
            written += [(prompt, own) for prompt, (own,) in zip(prompts, completions, strict=True)]
            prompts = [
                went_on(prompt, own) for prompt, (own,) in zip(prompts, completions, strict=True)
            ]
            fewest.append(len(engine._batch._histories))
        return written, fewest, engine._batch

    written, kept, batch = run(many())

    assert min(kept) > 0
    assert max(kept) < 6
    assert no_page_is_lost(batch)
    for prompt, completion in written:
        np.testing.assert_allclose(
            completion.logprobs, own_logprobs(lm, prompt, completion), atol=OF_ANOTHER_PASS
        )


def test_routes_of_a_history_stay_with_its_later_turns(carrying, run, start, make_request):
    lm = carrying("qwen3_next")

    async def episode(**options):
        engine = await start(
            lm, family="qwen3_next", returns_routes=True, max_length=200, **options
        )
        (first,) = await engine.generate(make_request(PROMPT, max_new_tokens=30))
        later = make_request(went_on(PROMPT, first), number=1, seeds=(1, 2))
        return [first, *await engine.generate(later)]

    async def both():
        return await episode(), await episode(share_prefixes=False)

    kept, anew = run(both())

    for one, other in zip(kept, anew, strict=True):
        same(one, other)
        np.testing.assert_array_equal(one.expert_routes, other.expert_routes)
