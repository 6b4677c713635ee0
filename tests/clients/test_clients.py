"""Released frameworks of agents ask a random policy in each of their modes, and get what the mode promises."""

import importlib.util

import numpy as np
import openai
import pytest
import torch
from tests.libs.data.chat.zoo import tokenizer_of

from rlhf_episodes.answers import MAX_MASKED

from .all_cases import CASES
from .cases import Held
from .policy import KIND, TEMPERATURE, asking, biased_model, play, play_written
from .recording import RECORDED, client_of, mode_of

pytestmark = [
    pytest.mark.usefixtures("installed_clients"),
    pytest.mark.skipif(importlib.util.find_spec("llguidance") is None, reason="needs llguidance"),
    # instructor warns of the older names of its modes, which are tried because programs have them.
    pytest.mark.filterwarnings(r"ignore:Mode\.:DeprecationWarning"),
]
HELD = [case for case in CASES if case.held not in (Held.NOTHING, Held.REFUSED)]
WRITTEN = [case for case in CASES if case.held is Held.NOTHING]
REFUSED = [case for case in CASES if case.held is Held.REFUSED]
ROUNDING = 2e-4
"""A log-prob is a difference of logits, sums of 32 products below 2^5 in float32, which are added in an order that
depends on how many tokens are read at once: 2 * 32 * 2^5 * 2^-24 = 1.2e-4."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("clients") / "model"


@pytest.mark.parametrize("temperature", [None, 0.0], ids=["sampled", "temperature 0"])
@pytest.mark.parametrize("case", HELD, ids=lambda case: case.name)
def test_a_mode_gets_an_answer_of_its_form(folder, case, temperature):
    found, sent = [], []

    played = play(asking(case.ask, temperature, found, sent), folder)

    (answer,) = found
    assert case.is_valid(answer), answer
    asked = played.answered[1:]
    assert asked[0][0].sampling.grammar is not None
    assert {request.sampling.temperature for request, _ in asked} == {
        TEMPERATURE if temperature is None else 0.0
    }
    check_logprobs(played)
    check_recorded(case, temperature, sent)


@pytest.mark.parametrize("case", WRITTEN, ids=lambda case: case.name)
def test_a_mode_that_demands_no_form_reads_what_the_policy_wrote(case):
    found, sent = [], []

    played = play_written(asking(case.ask, None, found, sent), lambda read: case.written)

    (answer,) = found
    assert case.is_valid(answer), answer
    check_recorded(case, None, sent)
    assert sum(row.metrics["graph/forks"] for row in played.rows) == 0.0


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.name)
def test_a_mode_that_nothing_here_serves_is_refused_with_the_reason(folder, case):
    refusals = []

    async def agent(context):
        with pytest.raises(openai.BadRequestError, match=case.refusal) as refused:
            await asking(case.ask, None, [], [])(context)
        refusals.append(refused.value)

    play(agent, folder)

    assert [each.status_code for each in refusals] == [400]


def test_every_mode_of_instructor_for_openai_is_tried():
    from instructor.v2.core.provider_specs import PROVIDER_SPECS
    from instructor.v2.core.providers import Provider

    modes = PROVIDER_SPECS[Provider.OPENAI]

    named = {mode.name for mode in (*modes.supported_modes, *modes.legacy_modes)}
    assert named <= {case.mode for case in CASES if case.framework == "instructor"}


def test_of_an_answer_of_a_form_only_the_places_that_left_the_choice_train(folder):
    """The policy would have begun a call anyway, and would not have written what follows."""
    forced = next(case for case in CASES if case.mode == "tool_choice required")

    played = play(asking(forced.ask, None, [], []), folder)

    (_, (request, answer)) = played.answered
    assert request.sampling.grammar is not None
    learned = int((answer.allowed_mass >= 1.0 - MAX_MASKED).sum())
    assert 0 < learned < len(answer.token_ids)
    free = len(played.answered[0][1].token_ids)
    assert sum(int(row.action_mask.sum()) for row in played.rows) == free + learned


def check_recorded(case, temperature, sent):
    """Check that the requests are those on record, by which `make test` goes without the frameworks."""
    recorded = [
        {"route": each["route"], "body": each["body"]}
        for each in RECORDED
        if (each["client"], each["mode"]) == (client_of(case), mode_of(case))
    ]
    if temperature is not None:
        sent = [{**each, "body": without_temperature(each["body"])} for each in sent]
        # What follows the first answer depends on it.
        sent, recorded = sent[:1], recorded[:1]
    assert sent == recorded, "python -m tests.clients.recording records them anew"


def without_temperature(body):
    assert body["temperature"] == 0.0
    return {name: value for name, value in body.items() if name != "temperature"}


@torch.no_grad()
def check_logprobs(played):
    """Check each token's log-prob against the softmax over what its grammar allows, and which of them are actions."""
    weights = []
    for request, completion in played.answered:
        sampling = request.sampling
        ids = torch.tensor([*request.prompt_ids, *completion.token_ids.tolist()])
        logits = biased_model()(ids[None]).logits[0, len(request.prompt_ids) - 1 : -1].double()
        logits /= sampling.temperature or 1.0
        allowed = allowed_tokens(sampling.grammar, completion.token_ids, logits.shape[-1])
        kept = logits.masked_fill(~allowed, -torch.inf)
        drawn = ids[len(request.prompt_ids) :, None]
        logprobs = kept.log_softmax(-1).gather(1, drawn)[:, 0].numpy()
        np.testing.assert_allclose(completion.logprobs, logprobs, rtol=0.0, atol=ROUNDING)
        mass = (kept.logsumexp(-1) - logits.logsumexp(-1)).exp().numpy()
        if sampling.temperature:
            weights += logprobs[mass >= 1.0 - MAX_MASKED].tolist()
            assert np.abs(mass - (1.0 - MAX_MASKED)).min() > 1e-6, "a place on the edge"
    trained = np.concatenate([row.rollout_logprobs for row in played.rows])
    np.testing.assert_allclose(np.sort(trained), np.sort(weights), rtol=0.0, atol=ROUNDING)


def allowed_tokens(grammar, token_ids, num_tokens):
    """Return (A, V) true where a grammar lets a token come, in front of each of the tokens."""
    from llguidance import LLMatcher
    from llguidance.hf import from_tokenizer

    if grammar is None:
        return torch.ones(len(token_ids), num_tokens, dtype=torch.bool)
    tokenizer = tokenizer_of(KIND)
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    matcher = LLMatcher(
        from_tokenizer(tokenizer, num_tokens, [end]), LLMatcher.grammar_from_lark(grammar)
    )
    rows = []
    for token in token_ids.tolist():
        bits = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8)
        rows.append(np.unpackbits(bits, count=num_tokens, bitorder="little").astype(bool))
        assert rows[-1][token]
        matcher.consume_token(token)
    return torch.from_numpy(np.array(rows))
