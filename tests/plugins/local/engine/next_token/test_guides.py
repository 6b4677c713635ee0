"""Answers below a grammar: what is drawn, and from which distribution its log-probs are."""

import importlib.util
from dataclasses import replace

import numpy as np
import pytest
import torch

from rlhf_core import RequestError
from rlhf_core.contracts import Stop
from rlhf_episodes.answers import MAX_MASKED
from rlhf_testing.errors import has_code
from rlhf_testing.tiny import tiny_tokenizer

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("llguidance") is None, reason="needs llguidance"
)
LETTERS = "start: /[a-z]{3}/"
PROMPT = (5, 6, 7)


@pytest.fixture
def decode():
    return "stepwise"


@pytest.fixture
def ids():
    """Token ids of characters, and the end."""
    tokenizer = tiny_tokenizer()
    return lambda text: [tokenizer.convert_tokens_to_ids(each) for each in text]


@pytest.fixture
def answers(start, lm, run, ids):
    """Generate for requests at once, with an engine whose answers end at the tokenizer's end."""

    def generate(*requests):
        async def play():
            engine = await start(lm, eos=(tiny_tokenizer().eos_token_id,))
            found = [await engine.generate(request) for request in requests]
            await engine.close()
            return found

        return run(play())

    return generate


def plain_masked_softmax(logits, allowed, temperature):
    """(A,) log-probs and masses, one token after the other: the definition."""
    scaled = logits.double() / temperature
    kept = torch.stack(
        [row[torch.tensor(each)].logsumexp(0) for row, each in zip(scaled, allowed, strict=True)]
    )
    return scaled, kept, (kept - scaled.logsumexp(1)).exp()


@pytest.mark.parametrize("temperature", [1.0, 4.0])
def test_log_probs_are_those_of_a_plain_masked_softmax(
    answers, make_request, full_logits, lm, ids, temperature
):
    eos = tiny_tokenizer().eos_token_id
    request = make_request(PROMPT, seeds=tuple(range(8)), grammar=LETTERS, temperature=temperature)

    (completions,) = answers(request)

    letters, texts = ids("abcdefghijklmnopqrstuvwxyz"), set()
    for one in completions:
        assert one.stop is Stop.EOS
        assert one.token_ids[-1] == eos
        assert set(one.token_ids[:-1].tolist()) <= set(letters)
        assert len(one.token_ids) == 4
        texts.add(tuple(one.token_ids.tolist()))
        scaled, kept, masses = plain_masked_softmax(
            full_logits(lm, PROMPT, one), [letters] * 3 + [[eos]], temperature
        )
        drawn = scaled[torch.arange(4), torch.tensor(one.token_ids, dtype=torch.long)]
        np.testing.assert_allclose(one.logprobs, (drawn - kept).numpy(), atol=1e-5)
        np.testing.assert_allclose(one.allowed_mass, masses.numpy(), rtol=1e-4, atol=1e-6)
        # What a grammar leaves no choice about has a log-prob of 0.
        assert one.logprobs[-1] == pytest.approx(0.0, abs=1e-6)
    assert len(texts) > 1


def test_where_a_token_is_an_action_the_first_ratio_is_1(answers, make_request, full_logits, lm):
    """The trainer's log-prob is without the grammar."""
    request = make_request(
        PROMPT, seeds=tuple(range(16)), grammar=r"start: /(.|\n)*/", temperature=0.25
    )

    (completions,) = answers(request)

    num_actions = 0
    for one in completions:
        learned = one.allowed_mass >= 1.0 - MAX_MASKED
        logprobs = (full_logits(lm, PROMPT, one).double() / 0.25).log_softmax(1)
        drawn = logprobs[torch.arange(len(logprobs)), torch.tensor(one.token_ids).long()].numpy()
        ratio = np.exp(drawn - one.logprobs)
        np.testing.assert_allclose(ratio, one.allowed_mass, rtol=1e-4)
        np.testing.assert_allclose(ratio[learned], 1.0, atol=1.01 * MAX_MASKED)
        num_actions += learned.sum()
    assert num_actions


def test_a_row_below_a_grammar_changes_no_other(answers, make_request):
    free = make_request(PROMPT, seeds=(1, 2))

    (alone,), (_, beside) = answers(free), answers(make_request(PROMPT, grammar=LETTERS), free)

    for one, other in zip(alone, beside, strict=True):
        np.testing.assert_array_equal(one.token_ids, other.token_ids)
        np.testing.assert_array_equal(one.logprobs, other.logprobs)
        assert one.allowed_mass is None


def test_an_answer_below_a_grammar_may_be_greedy_and_may_not_be_made_longer(answers, make_request):
    request = make_request(PROMPT, grammar=LETTERS, temperature=0.0, min_new_tokens=9)

    ((one,),) = answers(request)

    assert one.stop is Stop.EOS
    assert len(one.token_ids) == 4


@pytest.mark.parametrize(
    ("grammar", "problem", "code"),
    [
        ("start: nothing", "the form of the answer cannot be read", "engine/form-unreadable"),
        (
            'start: "\u4e16"',
            "no token of the model can be token 1 of an answer of this form",
            "engine/form-without-tokens",
        ),
    ],
)
def test_a_form_that_cannot_be_is_the_requests_own_error(
    answers, make_request, grammar, problem, code
):
    with pytest.raises(RequestError, match=problem, check=has_code(code)):
        answers(make_request(PROMPT, grammar=grammar))


def test_where_the_device_decodes_a_form_is_refused_with_the_option(start, lm, run, make_request):
    async def play():
        engine = await start(lm, decode="resident")
        await engine.generate(replace(make_request(PROMPT, grammar=LETTERS)))

    with pytest.raises(
        RequestError,
        match=r"--engine\.embedded\.decode stepwise",
        check=has_code("engine/form-on-device"),
    ):
        run(play())
