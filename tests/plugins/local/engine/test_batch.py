"""What the engine samples: against full forward passes, against Transformers, and against itself in other company."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
import torch

from rlhf_core.contracts import Stop
from rlhf_plugin_local.engine.next_token.sampling import BLOCK
from rlhf_testing.tiny import FAMILIES, tiny_tokenizer, write_tiny_model
from rlhf_torch.models.loading import load_causal_lm

PROMPTS = [tuple((np.arange(3 + 5 * n) * 7 + n) % 90 + 4) for n in range(6)]
PROMPTS = [tuple(map(int, prompt)) for prompt in PROMPTS]
ENDS = (7, 9, 11, 40, 60)


async def complete(engine, requests):
    """All completions, request by request, flat."""
    groups = await asyncio.gather(*map(engine.generate, requests))
    return [completion for group in groups for completion in group]


def requests_for(make_request, **params):
    return [
        make_request(prompt, seeds=tuple(range(10 * n, 10 * n + 4)), number=n, **params)
        for n, prompt in enumerate(PROMPTS)
    ]


@pytest.fixture
def generate(run, start):
    """Start an engine with the given options, serve the requests together, and return the completions."""

    def serve(lm, requests, **options):
        async def serve_all():
            engine = await start(lm, **options)
            try:
                return await complete(engine, requests)
            finally:
                await engine.close()

        return run(serve_all())

    return serve


@pytest.mark.parametrize("family", FAMILIES)
def test_logprobs_equal_those_of_a_full_forward_pass(
    family, lm_of, generate, make_request, full_logits
):
    lm = lm_of(family)
    requests = requests_for(make_request, max_new_tokens=30, temperature=0.7)

    completions = generate(lm, requests, slots=8)

    for number, completion in enumerate(completions):
        logits = full_logits(lm, PROMPTS[number // 4], completion) / 0.7
        ids = torch.tensor(completion.token_ids, dtype=torch.int64)[:, None]
        expected = logits.log_softmax(-1).gather(1, ids)[:, 0]
        assert len(completion.token_ids) == 30
        torch.testing.assert_close(torch.tensor(completion.logprobs), expected, atol=1e-4, rtol=0.0)


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_equals_transformers_generate(family, lm_of, generate, make_request, model_folder):
    from transformers import AutoModelForCausalLM

    lm = lm_of(family)
    reference = AutoModelForCausalLM.from_pretrained(model_folder(family), dtype=torch.float32)
    reference.load_state_dict(lm.model.state_dict())
    requests = [
        make_request(prompt, number=n, temperature=0.0, max_new_tokens=20)
        for n, prompt in enumerate(PROMPTS)
    ]

    completions = generate(lm, requests, slots=4)

    for prompt, completion in zip(PROMPTS, completions, strict=True):
        output = reference.generate(
            torch.tensor([prompt]),
            do_sample=False,
            max_new_tokens=20,
            eos_token_id=None,
            pad_token_id=0,
        )
        assert completion.token_ids.tolist() == output[0, len(prompt) :].tolist()


def test_greedy_logprobs_are_those_of_temperature_one(lm, generate, make_request, full_logits):
    request = make_request(PROMPTS[1], temperature=0.0, top_k=3)

    (completion,) = generate(lm, [request])

    logprobs = full_logits(lm, PROMPTS[1], completion).log_softmax(-1)
    assert completion.token_ids.tolist() == logprobs.argmax(-1).tolist()
    torch.testing.assert_close(
        torch.tensor(completion.logprobs), logprobs.max(-1).values, atol=1e-4, rtol=0.0
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_completions_do_not_depend_on_slots_company_order_or_shared_prefixes(
    family, lm_of, generate, make_request
):
    lm = lm_of(family)
    requests = requests_for(make_request, max_new_tokens=25)

    def serve(requests, **options):
        completions = generate(lm, requests, eos=ENDS, family=family, **options)
        return completions

    expected = serve(requests, slots=64)
    assert {c.stop for c in expected} == {Stop.EOS, Stop.LENGTH}  # so that rows move and refill
    alone = [c for request in requests for c in serve([request], slots=4)]
    reversed_groups = [serve(requests[::-1], slots=64)[4 * n : 4 * n + 4] for n in range(6)]
    others = {
        "3 slots": serve(requests, slots=3),
        "8 slots": serve(requests, slots=8),
        "blocks of 8": serve(requests, slots=64, block=8),
        "each prompt in its own prefill": serve(requests, slots=64, prefill_tokens=1),
        "no sharing": serve(requests, slots=64, share_prefixes=False),
        "alone": alone,
        "other order": [c for group in reversed_groups[::-1] for c in group],
    }

    # Experts multiply as many rows as were routed to them, so a mixture's last bits follow the batch.
    tolerance = 1e-5 if family == "qwen3_moe" else 0.0
    for what, completions in others.items():
        for actual, wanted in zip(completions, expected, strict=True):
            assert actual.token_ids.tolist() == wanted.token_ids.tolist(), what
            np.testing.assert_allclose(
                actual.logprobs, wanted.logprobs, atol=tolerance, rtol=0.0, err_msg=what
            )


def test_the_same_seed_and_prompt_give_the_same_tokens_and_other_seeds_others(
    lm, generate, make_request
):
    request = make_request(PROMPTS[2], seeds=(5, 6, 5), max_new_tokens=16)

    first, second, third = generate(lm, [request])

    assert first.token_ids.tolist() == third.token_ids.tolist()
    assert first.token_ids.tolist() != second.token_ids.tolist()


def test_different_sampling_in_one_batch_changes_nothing(lm, generate, make_request):
    params = [
        {"temperature": 0.0},
        {"temperature": 0.5, "top_k": 5},
        {"top_p": 0.8},
        {"min_p": 0.1, "temperature": 1.3},
        {"min_new_tokens": 6},
        {"stop": ("a", "7")},
        {},
    ]
    requests = [
        make_request(PROMPTS[2], seeds=(n, n + 50), number=n, **kind)
        for n, kind in enumerate(params)
    ]

    together = generate(lm, requests, eos=ENDS)

    alone = [c for request in requests for c in generate(lm, [request], eos=ENDS)]
    for actual, wanted in zip(together, alone, strict=True):
        assert actual.token_ids.tolist() == wanted.token_ids.tolist()
        assert actual.logprobs.tolist() == wanted.logprobs.tolist()
        assert actual.stop == wanted.stop


def test_tokens_of_a_large_vocabulary_do_not_depend_on_company_either(
    tmp_path, generate, make_request, full_logits
):
    alphabet = "".join(map(chr, range(0x4E00, 0x4E00 + 2500)))
    lm = load_causal_lm(str(write_tiny_model(tmp_path, alphabet=alphabet)), dtype="float32")
    params = [{}, {"temperature": 0.5, "top_k": 50}, {"temperature": 0.0}, {"top_p": 0.8}]
    requests = [
        make_request(prompt, seeds=(n, n + 50), number=n, max_new_tokens=8, **kind)
        for n, (prompt, kind) in enumerate(zip(PROMPTS, params, strict=False))
    ]

    together = generate(lm, requests, slots=64)

    for actual, other in zip(together, generate(lm, requests, slots=3), strict=True):
        assert actual.token_ids.tolist() == other.token_ids.tolist()
        assert actual.logprobs.tolist() == other.logprobs.tolist()
    assert {token // BLOCK for c in together for token in c.token_ids.tolist()} == {0, 1, 2}
    ids = torch.tensor(together[0].token_ids, dtype=torch.int64)[:, None]
    expected = full_logits(lm, PROMPTS[0], together[0]).log_softmax(-1).gather(1, ids)[:, 0]
    torch.testing.assert_close(torch.tensor(together[0].logprobs), expected, atol=1e-4, rtol=0.0)


@pytest.mark.parametrize("params", [{"top_k": 4}, {"top_p": 0.6}, {"min_p": 0.2}])
def test_truncated_logprobs_are_renormalized_over_what_was_kept(
    params, lm, generate, make_request, full_logits
):
    request = make_request(PROMPTS[1], seeds=tuple(range(8)), temperature=1.2, **params)

    completions = generate(lm, [request])

    for completion in completions:
        probs = (full_logits(lm, PROMPTS[1], completion) / 1.2).softmax(-1).double()
        for row, token, logprob in zip(
            probs, completion.token_ids, completion.logprobs, strict=True
        ):
            ranked, order = row.sort(descending=True)
            if "top_k" in params:
                num_kept = params["top_k"]
            elif "top_p" in params:
                num_kept = 1 + int((ranked.cumsum(0) < params["top_p"]).sum())
            else:
                num_kept = int((ranked >= params["min_p"] * ranked[0]).sum())
            assert token in order[:num_kept]
            expected = float((row[token] / ranked[:num_kept].sum()).log())
            assert logprob == pytest.approx(expected, abs=1e-4)


def test_first_tokens_follow_the_models_distribution(lm, generate, make_request):
    n = 4000
    request = make_request(PROMPTS[1], seeds=tuple(range(n)), max_new_tokens=1)

    completions = generate(lm, [request], max_concurrency=n, slots=512)

    tokens = torch.tensor([int(completion.token_ids[0]) for completion in completions])
    logprobs = {int(c.token_ids[0]): float(c.logprobs[0]) for c in completions}
    counts = torch.bincount(tokens, minlength=lm.vocab_size)
    expected = {token: n * np.exp(logprob) for token, logprob in logprobs.items()}
    common = [token for token, count in expected.items() if count >= 5]
    statistic = sum((int(counts[t]) - expected[t]) ** 2 / expected[t] for t in common)
    # Mean k, variance 2 k: 5 standard deviations above the mean.
    assert len(common) > 10
    assert statistic < len(common) + 5 * (2 * len(common)) ** 0.5


def test_every_end_of_sequence_id_ends_a_turn_and_is_kept(lm, generate, make_request):
    request = make_request(PROMPTS[1], seeds=tuple(range(40)), max_new_tokens=60)

    completions = generate(lm, [request], eos=ENDS)

    lasts = {int(c.token_ids[-1]) for c in completions if c.stop == Stop.EOS}
    assert len(lasts) >= 2
    assert lasts <= set(ENDS)
    for completion in completions:
        assert not set(completion.token_ids[:-1].tolist()) & set(ENDS)
        if completion.stop == Stop.LENGTH:
            assert len(completion.token_ids) == 60


def test_before_min_new_tokens_no_end_is_sampled_and_logprobs_know_it(
    lm, generate, make_request, full_logits
):
    request = make_request(PROMPTS[1], seeds=tuple(range(20)), min_new_tokens=8, max_new_tokens=60)

    completions = generate(lm, [request], eos=ENDS)

    assert any(c.stop == Stop.EOS for c in completions)
    for completion in completions:
        assert len(completion.token_ids) >= 8
        logits = full_logits(lm, PROMPTS[1], completion)
        logits[:8, list(ENDS)] = -torch.inf
        ids = torch.tensor(completion.token_ids, dtype=torch.int64)[:, None]
        expected = logits.log_softmax(-1).gather(1, ids)[:, 0]
        torch.testing.assert_close(torch.tensor(completion.logprobs), expected, atol=1e-4, rtol=0.0)


def test_a_stop_string_of_several_tokens_ends_the_turn_with_its_tokens(lm, generate, make_request):
    tokenizer = tiny_tokenizer()
    free = make_request(PROMPTS[3], seeds=tuple(range(6)), max_new_tokens=40)
    texts = [tokenizer.decode(c.token_ids) for c in generate(lm, [free])]
    stop = texts[0][10:13]  # one character is one token here

    request = make_request(PROMPTS[3], seeds=tuple(range(6)), max_new_tokens=40, stop=("@@@", stop))
    completions = generate(lm, [request])

    assert completions[0].stop == Stop.STRING
    for text, completion in zip(texts, completions, strict=True):
        end = text.find(stop)
        assert tokenizer.decode(completion.token_ids) == (
            text if end < 0 else text[: end + len(stop)]
        )
        assert completion.stop == (Stop.LENGTH if end < 0 else Stop.STRING)


def test_a_stop_string_within_min_new_tokens_is_ignored(lm, generate, make_request):
    """As vLLM does: it is the next one that ends the turn."""
    tokenizer = tiny_tokenizer()
    (free,) = generate(lm, [make_request(PROMPTS[3], max_new_tokens=30)])
    text = tokenizer.decode(free.token_ids)  # one character is one token here
    stop = next(text[i : i + 1] for i in range(8) if text.find(text[i], 9) > 0)

    (completion,) = generate(
        lm, [make_request(PROMPTS[3], max_new_tokens=30, stop=(stop,), min_new_tokens=9)]
    )

    end = text.index(stop, 9) + 1
    assert completion.token_ids.tolist() == free.token_ids[:end].tolist()
    assert completion.stop == Stop.STRING


def test_the_budget_is_cut_to_the_maximal_length(lm, generate, make_request):
    prompt = PROMPTS[5]

    (completion,) = generate(
        lm, [make_request(prompt, max_new_tokens=500)], max_length=len(prompt) + 9
    )

    assert len(completion.token_ids) == 9
    assert completion.stop == Stop.LENGTH


def test_one_token_of_budget_needs_no_step(lm, generate, make_request):
    (completion,) = generate(lm, [make_request(PROMPTS[0], max_new_tokens=1)])

    assert len(completion.token_ids) == len(completion.logprobs) == 1


def test_arrays_have_the_types_of_the_contract(lm, generate, make_request):
    (completion,) = generate(lm, [make_request(PROMPTS[0])])

    assert completion.token_ids.dtype == np.int32
    assert completion.logprobs.dtype == np.float32
    assert completion.weight_version.dtype == np.int32
    assert len(completion.token_ids) == len(completion.weight_version)


def test_bfloat16_autocast_stays_close_to_the_full_forward_pass(
    lm_of, generate, make_request, full_logits
):
    from rlhf_torch.models.modeling import CausalLM

    lm = CausalLM(lm_of("qwen3").model, torch.bfloat16)
    requests = requests_for(make_request, max_new_tokens=30)

    completions = generate(lm, requests, slots=8)

    for number, completion in enumerate(completions):
        logits = full_logits(lm, PROMPTS[number // 4], completion)
        ids = torch.tensor(completion.token_ids, dtype=torch.int64)[:, None]
        expected = logits.log_softmax(-1).gather(1, ids)[:, 0]
        # Logits reach 8 here, and bfloat16 keeps 8 bits.
        torch.testing.assert_close(torch.tensor(completion.logprobs), expected, atol=0.15, rtol=0.0)


@pytest.mark.parametrize("decode", ["stepwise", "resident"])
def test_all_prompts_that_there_is_room_for_are_computed_before_a_token_is_decoded(
    lm, run, start, make_request
):
    """Each step takes about as long for some of the sequences as for all of them."""
    together = []

    async def serve():
        engine = await start(lm, slots=16, prefill_tokens=1, max_length=64)
        step = engine._batch.step
        engine._batch.step = lambda: (together.append(len(engine._batch.active)), step())[1]
        await complete(engine, requests_for(make_request, min_new_tokens=9, max_new_tokens=9))

    run(serve())

    assert together[0] == 16
    assert max(together) == 16
