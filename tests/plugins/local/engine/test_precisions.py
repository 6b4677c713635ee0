"""Engine and trainer agree in every precision that the options allow, whoever holds the engine's weights."""

from __future__ import annotations

import pytest
import torch

from rlhf_core.contracts import EngineSpec
from rlhf_plugin_local.engine.config import EmbeddedEngineConfig
from rlhf_plugin_local.engine.embedded import EmbeddedEngine
from rlhf_testing.tiny import FAMILIES, write_tiny_model
from rlhf_torch.models.loading import load_causal_lm

PROMPTS = [tuple(range(4 + n, 9 + 4 * n)) for n in range(3)]
PRECISIONS = [("float32", "float32"), ("float32", "bfloat16"), ("bfloat16", "bfloat16")]
NATS = {"float32": 1e-4, "bfloat16": 0.15}
"""Largest difference of a log-prob. float32: sums in another order. bfloat16: engine and trainer round to 8 bits at
different places (the engine's attention keeps scores and probabilities in float32), and one rounding of a logit of
size 4 to 8 is off by up to 0.016; a few of them add up. A token that does not attend to itself is off by 0.5 to 3.7."""
MEAN_NATS = {"float32": 1e-5, "bfloat16": 0.02}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Models whose weights are large enough for attention to matter."""
    root = tmp_path_factory.mktemp("sharp")
    return {f: write_tiny_model(root / f, f, initializer_range=0.2) for f in FAMILIES}


@pytest.mark.parametrize("weights", ["shared", "copy"])
@pytest.mark.parametrize(("dtype", "compute_dtype"), PRECISIONS)
@pytest.mark.parametrize("family", FAMILIES)
def test_logprobs_are_the_trainers(
    family, dtype, compute_dtype, weights, folders, source_of, run, make_request, full_logits
):
    lm = load_causal_lm(str(folders[family]), dtype=dtype, compute_dtype=compute_dtype)

    async def generate():
        engine = EmbeddedEngine(EmbeddedEngineConfig(weights=weights))
        spec = EngineSpec(
            model_path=str(folders[family]),
            dtype=dtype,
            max_length=64,
            max_concurrency=8,
            eos_token_ids=(2,),
        )
        await engine.start(spec, source_of(lm))
        return [
            (prompt, await engine.generate(make_request(prompt, number=number, seeds=(1, 2))))
            for number, prompt in enumerate(PROMPTS)
        ]

    differences = []
    for prompt, completions in run(generate()):
        for completion in completions:
            ids = torch.tensor(completion.token_ids, dtype=torch.int64)[:, None]
            expected = full_logits(lm, prompt, completion).log_softmax(-1).gather(1, ids)[:, 0]
            differences.append((torch.tensor(completion.logprobs) - expected).abs())
    difference = torch.cat(differences)
    assert float(difference.max()) <= NATS[compute_dtype]
    assert float(difference.mean()) <= MEAN_NATS[compute_dtype]
