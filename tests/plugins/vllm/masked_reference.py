"""What answers below a grammar have to be: llguidance's masks on plain forward passes of the model."""

from __future__ import annotations

import json

import numpy as np
import torch

from rlhf_core.contracts import Stop

SCHEMA = {
    "type": "object",
    "properties": {"n": {"enum": [1, 22, 333]}, "yes": {"type": "boolean"}},
    "required": ["n", "yes"],
    "additionalProperties": False,
    "x-guidance": {"whitespace_flexible": False},
}
OBJECT = f"start: answer\nanswer: %json {json.dumps(SCHEMA)}"
PROMPT = (5, 9, 12)
GPU = torch.cuda.is_available()
GPU_SHAPE = {"hidden_size": 256, "num_layers": 2, "initializer_range": 0.1}
"""Heads of 64, which attention kernels of GPUs know."""
CLOSE = {"rtol": 0.0, "atol": 5e-3 if GPU else 1e-4}
"""Of log-probs: kernels of GPUs multiply float32 in TF32, with 10 bits after the point."""
MASSES = {"rtol": 1e-2 if GPU else 1e-3, "atol": 1e-6}


@torch.no_grad()
def scaled_logits(model, request, row):
    """(A, V) of a plain forward pass, divided by the temperature."""
    ids = torch.from_numpy(np.concatenate([request.prompt_ids, row.token_ids]).astype(np.int64))
    logits = model(ids[None]).logits[0, len(request.prompt_ids) - 1 : -1].double()
    return logits / (request.sampling.temperature or 1.0), ids[len(request.prompt_ids) :]


def expected(model, request, row, tokenizer):
    """(A,) log-probs and masses by llguidance alone: its masks on a plain forward pass, one token after the other."""
    from llguidance import LLMatcher
    from llguidance.hf import from_tokenizer

    grammar = LLMatcher.grammar_from_lark(request.sampling.grammar)
    matcher = LLMatcher(from_tokenizer(tokenizer, len(tokenizer)), grammar)
    logits, ids = scaled_logits(model, request, row)
    logprobs, masses = [], []
    for place, token in enumerate(ids.tolist()):
        bits = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8)
        allowed = np.unpackbits(bits, count=len(tokenizer), bitorder="little").astype(bool)
        kept = logits[place][torch.from_numpy(allowed)].logsumexp(0)
        logprobs.append((logits[place, token] - kept).item())
        masses.append((kept - logits[place].logsumexp(0)).exp().item())
        assert matcher.consume_token(token)
    return logprobs, masses


def check_a_schema(engine, byte_model, tokenizer, run, make_request, temperature):
    """Ask an engine for answers of a schema, and compare texts, log-probs and masses."""
    request = make_request(
        PROMPT,
        seeds=tuple(range(8)),
        grammar=OBJECT,
        temperature=temperature,
        max_new_tokens=200,
        min_new_tokens=150,
    )

    rows = run(engine.generate(request))

    texts = set()
    for row in rows:
        logprobs, masses = expected(byte_model[1], request, row, tokenizer)
        np.testing.assert_allclose(row.logprobs, logprobs, **CLOSE)
        np.testing.assert_allclose(row.allowed_mass, masses, **MASSES)
        assert row.stop is Stop.EOS
        texts.add(tokenizer.decode(row.token_ids, skip_special_tokens=True))
    for text in texts:
        assert set(json.loads(text)) == {"n", "yes"}
        assert json.loads(text)["n"] in (1, 22, 333)
