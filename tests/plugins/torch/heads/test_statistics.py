"""What a scoring pass reads off the logits: against a plain softmax over all of them."""

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from rlhf_core import ConfigError
from rlhf_testing.errors import has_code
from rlhf_torch.heads import on_gpu, statistics
from rlhf_torch.heads.statistics import is_top1, read_fused, read_plain
from rlhf_torch.models.modeling import LogitForm


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

    found = backend.statistics(batch, ["sum_pi_squared", "logprobs", "is_top1", "entropy"])

    assert list(found) == ["sum_pi_squared", "logprobs", "is_top1", "entropy"]
    top = backend.top_tokens(batch, 1).logprobs[:, 0]
    np.testing.assert_array_equal(found["is_top1"], (found["logprobs"] == top).astype(np.float32))
    probs = expected.exp()
    np.testing.assert_allclose(found["sum_pi_squared"], (probs**2).sum(-1), rtol=1e-5)
    np.testing.assert_allclose(found["entropy"], -(probs * expected).sum(-1), rtol=1e-5)
    np.testing.assert_allclose(found["logprobs"], backend.logprobs(batch), atol=0)


def test_an_action_is_the_most_probable_token_also_beside_an_equal_one():
    raw = torch.tensor([[1.0, 3.0, 2.0], [1.0, 3.0, 2.0], [4.0, 4.0, 0.0], [4.0, 4.0, 0.0]])

    found = is_top1(raw, torch.tensor([1, 2, 0, 1]))

    assert found.tolist() == [1.0, 0.0, 1.0, 1.0]


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
    with pytest.raises(
        ConfigError, match="100 tokens; 101", check=has_code("model/small-vocabulary")
    ):
        start(make_spec(models["qwen3"])).top_tokens(make_trajectories(), 101)


FORMS = [
    LogitForm(),
    LogitForm(temperature=0.7),
    LogitForm(scale=0.5, temperature=1.3),
    LogitForm(softcap=2.0),
    LogitForm(scale=2.0, softcap=3.0, temperature=0.9),
]
NAMES = ("sum_pi_squared", "logprobs", "is_top1", "entropy")


def logits_and_targets(rows, dtype):
    generator = torch.Generator().manual_seed(3)
    raw = (torch.randn(rows, 11, generator=generator) * 4).to(dtype)
    return raw, torch.randint(0, 11, (rows,), generator=generator)


@pytest.fixture
def uncompiled(monkeypatch):
    for module in (statistics, on_gpu):
        monkeypatch.setattr(module, "compiled", lambda function: function)


@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("names", [NAMES, ("entropy",), ("logprobs",), ("sum_pi_squared",)])
def test_what_a_gpu_reads_is_what_a_cpu_reads(form, dtype, names):
    raw, targets = logits_and_targets(6, dtype)

    torch.testing.assert_close(
        read_fused(raw, targets, names, form), read_plain(raw, targets, names, form)
    )


@pytest.mark.usefixtures("uncompiled")
def test_the_sum_of_squares_of_three_tokens():
    """p = 1/2, 1/4, 1/4: 1/4 + 1/16 + 1/16 = 0.375, entropy 1.5 log 2, log p(0) = -log 2."""
    raw, target = torch.tensor([[2.0, 1.0, 1.0]]).log(), torch.tensor([0])
    names = ("sum_pi_squared", "logprobs", "entropy")

    found = read_fused(raw, target, names, LogitForm())

    torch.testing.assert_close(found, torch.tensor([[0.375, -0.693147, 1.039721]]))


@pytest.mark.slow
# Inductor itself uses what torch has deprecated.
@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"
)
def test_compiled_functions_read_the_same_without_a_gradient():
    """In inference mode, as backends score, and in the mode in which training has compiled them before."""
    form = LogitForm(softcap=3.0, temperature=0.9)
    for mode in (torch.no_grad, torch.inference_mode):
        for rows in (6, 5, 4):
            raw, targets = logits_and_targets(rows, torch.float32)
            with mode():
                actual = read_fused(raw, targets, NAMES, form)
            torch.testing.assert_close(actual, read_plain(raw, targets, NAMES, form))
