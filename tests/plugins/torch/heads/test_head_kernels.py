"""Kernels of the output head against the functions that they replace; on a CPU with TRITON_INTERPRET=1."""

import os

import pytest
import torch

pytest.importorskip("triton")

from rlhf_torch.heads import fused_head, head_kernels
from rlhf_torch.models.modeling import NEVER, LogitForm

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1",
    reason="without a GPU Triton needs TRITON_INTERPRET=1 from the start",
)

FORMS = [LogitForm(), LogitForm(scale=0.5, temperature=0.7), LogitForm(2.0, 5.0, 1.3)]


@pytest.fixture
def kernels(monkeypatch):
    """The module, with blocks that cut a small vocabulary."""
    monkeypatch.setattr(head_kernels, "SCORES_BLOCK", 64)
    monkeypatch.setattr(head_kernels, "GRAD_BLOCK", 32)
    return head_kernels


@pytest.fixture
def material():
    draw = torch.Generator().manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"

    def make(dtype, num_ids):
        raw = (4 * torch.randn(7, 211, generator=draw)).to(dtype)
        ids = torch.randint(211, (7, num_ids), generator=draw)
        return raw.to(device), ids.to(device), torch.randn(2, 7, generator=draw).to(device)

    return make


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_scores_and_gradients_are_those_of_plain_functions(kernels, material, form, dtype):
    raw, ids, (of_logprob, of_entropy) = material(dtype, 3)
    expected = fused_head.head_scores(raw, ids, form)

    actual = kernels.head_scores(raw, ids, form)

    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)
    _, entropies, logsumexp = expected
    for grad_entropy in (None, of_entropy):
        known = form, logsumexp, of_logprob
        zeros = torch.zeros_like(of_logprob) if grad_entropy is None else grad_entropy
        plain = fused_head.head_grad(raw, ids[:, 0], *known, zeros, entropies)
        room = raw.clone()
        made = kernels.head_grad_(room, ids[:, 0], *known, grad_entropy, entropies)
        assert made.data_ptr() == room.data_ptr()
        step = 1e-5 if dtype == torch.float32 else 2**-7
        torch.testing.assert_close(made, plain, atol=1e-5, rtol=step)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_soft_cap_leaves_out_what_is_never_sampled(kernels, material, dtype):
    raw, ids, (of_logprob, of_entropy) = material(dtype, 1)
    ids[:] = 5
    raw[:, [0, 100]] = NEVER
    form = LogitForm(2.0, 5.0, 1.3)

    logprobs, entropies, logsumexp = kernels.head_scores(raw, ids, form)

    kept = [place for place in range(211) if place not in (0, 100)]
    own = form.apply(raw)[:, kept].log_softmax(-1)
    torch.testing.assert_close(logprobs[:, 0], own[:, 4], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(entropies, -(own.exp() * own).sum(-1), atol=1e-5, rtol=1e-5)
    room = raw.clone()
    kernels.head_grad_(room, ids[:, 0], form, logsumexp, of_logprob, of_entropy, entropies)
    assert not room[:, [0, 100]].any()
    assert room[:, 5].all()


def test_extreme_logits_stay_finite(kernels, material):
    raw, ids, _ = material(torch.float32, 1)
    raw[0, :] = -1e30
    raw[0, 200] = 0.0
    raw[1, 0] = 1e4

    actual = kernels.head_scores(raw, ids, LogitForm())

    expected = fused_head.head_scores(raw.double().float(), ids, LogitForm())
    torch.testing.assert_close(actual[0], expected[0])
    torch.testing.assert_close(actual[2], expected[2])
    assert all(bool(part.isfinite().all()) for part in actual)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("outside", [211, 400, -1, 2**40])
def test_an_id_outside_of_the_vocabulary_reads_no_other_row(kernels, material, form, outside):
    raw, ids, _ = material(torch.float32, 3)
    expected = kernels.head_scores(raw, ids, form)
    wrong = ids.clone()
    wrong[2, 1] = outside

    actual = kernels.head_scores(raw, wrong, form)

    assert actual[0][2, 1].isnan()
    others = torch.ones_like(ids, dtype=torch.bool)
    others[2, 1] = False
    torch.testing.assert_close(actual[0][others], expected[0][others], atol=0, rtol=0)
    torch.testing.assert_close(actual[1:], expected[1:], atol=0, rtol=0)
