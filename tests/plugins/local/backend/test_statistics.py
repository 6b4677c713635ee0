"""What a scoring pass reads off the logits: against a plain softmax over all of them."""

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from rlhf_core import ConfigError


def plain_distributions(path, batch, temperature):
    """Log-probabilities (sum of A, V) of each action's distribution, one sequence at a time."""
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    parts = []
    for row in range(len(batch)):
        tokens = torch.from_numpy(batch.tokens_of(row).astype(np.int64))
        start = batch.token_offsets[row]
        actions = np.flatnonzero(batch.action_mask[start : start + len(tokens)])
        with torch.no_grad():
            logits = model(tokens[None]).logits[0].float()
        parts.append((logits[actions - 1] / temperature).log_softmax(-1))
    return torch.cat(parts)


def test_all_statistics_come_from_one_distribution(start, make_spec, make_trajectories, models):
    batch = make_trajectories()
    backend = start(make_spec(models["qwen3"], temperature=0.7, max_tokens_per_micro_batch=40))
    expected = plain_distributions(models["qwen3"], batch, 0.7)

    found = backend.statistics(batch, ["sum_pi_squared", "logprobs", "entropy"])

    assert list(found) == ["sum_pi_squared", "logprobs", "entropy"]
    probs = expected.exp()
    np.testing.assert_allclose(found["sum_pi_squared"], (probs**2).sum(-1), rtol=1e-5)
    np.testing.assert_allclose(found["entropy"], -(probs * expected).sum(-1), rtol=1e-5)
    np.testing.assert_allclose(found["logprobs"], backend.logprobs(batch), atol=0)


def test_the_most_probable_tokens_come_highest_first(start, make_spec, make_trajectories, models):
    batch = make_trajectories()
    backend = start(make_spec(models["qwen3"], temperature=2.0, max_tokens_per_micro_batch=40))
    expected = plain_distributions(models["qwen3"], batch, 2.0).sort(-1, descending=True)

    top = backend.top_tokens(batch, 3)

    assert top.token_ids.dtype == np.int32
    np.testing.assert_array_equal(top.token_ids, expected.indices[:, :3].numpy())
    np.testing.assert_allclose(top.logprobs, expected.values[:, :3].numpy(), atol=1e-5)


def test_more_tokens_than_the_vocabulary_has_are_refused(
    start, make_spec, make_trajectories, models
):
    with pytest.raises(ConfigError, match="has 100 tokens; 101 of them were asked for"):
        start(make_spec(models["qwen3"])).top_tokens(make_trajectories(), 101)
