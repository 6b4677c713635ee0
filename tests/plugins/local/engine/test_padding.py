"""Rows of the output head that no token has: the engine never samples them, and its log-probs know nothing of them."""

import numpy as np
import pytest
import torch

from rlhf_core.contracts import Vocabulary
from rlhf_torch.models.loading import load_causal_lm

PROMPT = (5, 6, 7)
TOKENS = Vocabulary(size=60, holes=(9, 20))
PARAMS = [{}, {"temperature": 0.5}, {"top_k": 5}, {"top_p": 0.7}, {"temperature": 0.0}]


@pytest.fixture
def padded(model_folder):
    """A model whose rows from 60 on are those that it likes best."""
    lm = load_causal_lm(str(model_folder("llama")), dtype="float32")
    with torch.no_grad():
        for parameter in lm.parameters():
            if parameter.dim() > 1:
                parameter.mul_(6.0)
        lm.model.get_output_embeddings().weight[TOKENS.size :] *= 3.0
    return lm


async def written(engine, request):
    try:
        return await engine.generate(request)
    finally:
        await engine.close()


@pytest.mark.parametrize("weights", ["shared", "copy"])
@pytest.mark.parametrize("params", PARAMS, ids=str)
def test_padding_is_never_sampled_and_log_probs_are_those_of_the_tokens_alone(
    start, run, make_request, padded, full_logits, params, weights
):
    request = make_request(PROMPT, seeds=(1, 2, 3), max_new_tokens=20, **params)

    async def play(vocabulary):
        engine = await start(padded, family="llama", vocabulary=vocabulary, weights=weights)
        return await written(engine, request)

    free = run(play(None))
    kept = run(play(TOKENS))

    unused = [*TOKENS.holes, *range(TOKENS.size, padded.vocab_size)]
    assert np.isin(np.concatenate([one.token_ids for one in free]), unused).mean() > 0.5
    assert not np.isin(np.concatenate([one.token_ids for one in kept]), unused).any()
    if "top_k" in params or "top_p" in params:
        return
    padded._never = padded._never[:0]
    for one in kept:
        logits = full_logits(padded, PROMPT, one)  # (A, V)
        logits[:, unused] = -torch.inf
        scaled = logits / (params.get("temperature") or 1.0)
        expected = scaled.log_softmax(-1).gather(1, torch.tensor(one.token_ids).long()[:, None])
        torch.testing.assert_close(torch.tensor(one.logprobs), expected[:, 0], atol=1e-4, rtol=1e-4)
