"""A model of every type that Transformers calls a causal language model is computed as its own code does it, packed and
by the embedded engine, or is refused by name."""

import asyncio

import pytest
import torch
from tests.cases import one_in
from tests.plugins.torch.models.test_architectures import (
    ROWS,
    generate,
    own_logprobs,
    packed_logprobs,
)
from tests.plugins.torch.models.tiny_causal_types import (
    CAUSAL_TYPES,
    NotMadeError,
    write_tiny_causal_model,
)
from transformers import AutoModelForCausalLM

from rlhf_core.errors import RLHFError
from rlhf_torch.models.loading import load_causal_lm

REFUSALS = {
    "model/attends-twice",
    "model/encoder-decoder",
    "model/layers-not-asked",
    "model/no-layers",
    "model/own-attention",
    "model/packing-differs",
    "model/reads-images",
    "model/unknown-family",
    "model/unknown-layers",
}

pytestmark = pytest.mark.slow


# A type changes with a release of Transformers; those that are trained most have tests of their own.
@pytest.mark.parametrize("model_type", one_in(4, CAUSAL_TYPES))
def test_its_numbers_are_those_of_its_own_code_or_it_is_refused(tmp_path, model_type):
    try:
        write_tiny_causal_model(tmp_path, model_type)
    except NotMadeError as error:
        pytest.skip(f"no tiny model of this type is made: {error}")

    try:
        lm = load_causal_lm(str(tmp_path), dtype="float32")
    except RLHFError as error:
        refusal = error
    else:
        refusal = None

    if refusal is not None:
        assert refusal.code in REFUSALS, refusal
        return
    packed = packed_logprobs(lm)
    own, exact = own_logprobs(tmp_path, "float32"), own_logprobs(tmp_path, "float64")
    rounding = float((own - exact).abs().max())
    torch.testing.assert_close(packed, own, atol=max(1e-5, 3 * rounding), rtol=0.0)

    prompt = tuple(ROWS[0].tolist())
    (completion,) = asyncio.run(generate(lm, tmp_path, prompt))
    tokens = torch.tensor([*prompt, *completion.token_ids])
    plain = AutoModelForCausalLM.from_pretrained(
        tmp_path, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    with torch.no_grad():
        logits = plain(input_ids=tokens[None], use_cache=False).logits[0, len(prompt) - 1 : -1]
    sampled = tokens[len(prompt) :, None]
    expected = logits.div(0.7).log_softmax(-1).gather(1, sampled).squeeze(1)
    torch.testing.assert_close(
        torch.tensor(completion.logprobs), expected, atol=max(1e-4, 3 * rounding), rtol=0.0
    )
