"""Rows of the output head for which the tokenizer has no token: never sampled, however high their logits are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from rlhf_core.batch.vocabulary import Vocabulary
from rlhf_testing.tiny import tiny_tokenizer, write_tiny_model

pytestmark = [pytest.mark.scale, pytest.mark.slow]

TOKENS = len(tiny_tokenizer())
ROWS = -(-TOKENS // 64) * 64
HOLE = 50
"""An id in the middle of the vocabulary that no token has either."""
NOBODYS = [HOLE, *range(TOKENS, ROWS)]
PROMPT = (5, 9, 12)


@pytest.fixture(scope="module")
def padded_model(tmp_path_factory):
    """A model whose padding rows have logits a thousand times those of tokens: the largest one is nobody's."""
    from transformers import AutoModelForCausalLM

    folder = write_tiny_model(
        tmp_path_factory.mktemp("padded") / "model", initializer_range=0.3, tied=False
    )
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    model.resize_token_embeddings(ROWS, mean_resizing=False)
    with torch.no_grad():
        draw = torch.Generator().manual_seed(0)
        shape = len(NOBODYS), model.config.hidden_size
        model.lm_head.weight[NOBODYS] = 300.0 * torch.randn(shape, generator=draw)
    model.save_pretrained(folder)
    return folder, model


@pytest.fixture(scope="module")
def padded_engine(loop, spec, padded_model, source_of):
    from rlhf_plugin_vllm.config import VllmEngineConfig
    from rlhf_plugin_vllm.engine import VllmEngine

    folder, model = padded_model
    engine = VllmEngine(VllmEngineConfig(bucket_mib=1, kv_cache_gib=0.25, threads=1))
    own = replace(spec, model_path=str(folder), vocabulary=Vocabulary(size=TOKENS, holes=(HOLE,)))
    loop.run_until_complete(engine.start(own, source_of(dict(model.state_dict()))))
    yield engine
    loop.run_until_complete(engine.close())


def test_rows_without_a_token_are_never_sampled(padded_engine, padded_model, run, make_request):
    temperature = 1.5
    request = make_request(PROMPT, seeds=tuple(range(16)), temperature=temperature)

    rows = run(padded_engine.generate(request))

    _, model = padded_model
    for row in rows:
        assert not np.isin(row.token_ids, NOBODYS).any()
        ids = torch.from_numpy(np.concatenate([PROMPT, row.token_ids]).astype(np.int64))
        with torch.no_grad():
            logits = model(ids[None]).logits[0, len(PROMPT) - 1 : -1] / temperature
        assert np.isin(logits.argmax(-1), NOBODYS).all(), "else nothing would be sampled there"
        logits[:, NOBODYS] = -torch.inf
        expected = logits.log_softmax(-1).gather(1, ids[len(PROMPT) :, None])[:, 0]
        torch.testing.assert_close(torch.from_numpy(row.logprobs), expected, atol=1e-4, rtol=0)
