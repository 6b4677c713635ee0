"""Kernels of decoding against the plain operations that they replace; on a CPU with TRITON_INTERPRET=1."""

from __future__ import annotations

import os

import pytest
import torch

pytest.importorskip("triton")

from rlhf_plugin_local.engine import sampling
from rlhf_plugin_local.engine.counter import uniforms
from rlhf_plugin_local.engine.resident import attention_kernel, draw_kernel
from rlhf_plugin_local.engine.resident.attention import plain_decode_attention
from rlhf_plugin_local.engine.resident.pages import PAGE
from rlhf_torch.models.modeling import LogitForm

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1",
    reason="without a GPU Triton needs TRITON_INTERPRET=1 from the start",
)
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.mark.parametrize(
    ("H", "H_kv", "K", "window", "softcap", "parts"),
    [
        (4, 2, 16, None, None, 1),
        (12, 2, 32, None, None, 4),
        (6, 6, 24, 70, None, 2),
        (8, 1, 16, 10, 5.0, 4),
        (8, 1, 16, PAGE, None, 16),
    ],
)
def test_attention_over_pages(H, H_kv, K, window, softcap, parts, monkeypatch):
    monkeypatch.setattr(attention_kernel, "_number_of_parts", lambda *_: parts)
    draw = torch.Generator().manual_seed(0)
    positions = torch.tensor([0, PAGE - 1, PAGE, 200, 311], device=DEVICE)
    table = (torch.randperm(39, generator=draw)[:25].reshape(5, 5) + 1).int().to(DEVICE)

    def normal(*shape):
        return torch.randn(*shape, generator=draw).to(DEVICE)

    stores = normal(40, H_kv, PAGE, K), normal(40, H_kv, PAGE, K)
    new = normal(5, H, K), normal(5, H_kv, K), normal(5, H_kv, K)
    results = []
    for attend in (attention_kernel.decode_attention, plain_decode_attention):
        own = [store.clone() for store in stores]
        results.append((attend(*new, *own, table, positions, 0.3, window, softcap), *own))

    (output, *written), (expected, *expected_written) = results
    torch.testing.assert_close(output, expected, atol=2e-6, rtol=2e-6)
    assert all(map(torch.equal, written, expected_written))


def test_parts_give_every_processor_work_and_are_a_power_of_two():
    assert attention_kernel._number_of_parts(512, 132) == 2
    assert attention_kernel._number_of_parts(16, 132) == attention_kernel.MAX_PARTS
    assert attention_kernel._number_of_parts(10_000, 132) == 1


@pytest.mark.parametrize("form", [LogitForm(), LogitForm(0.5, 5.0)])
@pytest.mark.parametrize("delayed", [False, True])
def test_the_draw_takes_the_tokens_of_the_plain_one(form, delayed, monkeypatch):
    monkeypatch.setattr(draw_kernel, "CHUNK", 64)
    draw = torch.Generator().manual_seed(0)
    raw = (4 * torch.randn(200, 211, generator=draw)).to(DEVICE)
    seed = torch.randint(-(2**62), 2**62, (200,), generator=draw).to(DEVICE)
    index = torch.arange(200, device=DEVICE)
    temperature = (torch.rand(200, generator=draw) + 0.3).to(DEVICE)

    early = index % 2 == 0 if delayed else None
    is_eos = torch.arange(211, device=DEVICE) % 3 == 0

    tokens, logprobs = draw_kernel.draw(
        raw, form, temperature, seed, index, early=early, is_eos=is_eos
    )

    logits = form.apply(raw) / temperature[:, None]
    if early is not None:
        logits = logits.masked_fill(early[:, None] & is_eos, -torch.inf)
    expected, expected_logprobs = sampling.draw(logits, uniforms(seed, index))
    assert tokens.tolist() == expected.tolist()
    torch.testing.assert_close(logprobs, expected_logprobs, atol=5e-6, rtol=5e-6)


# The interpreter computes with numpy, which warns; a GPU does not.
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("place", [0, 100, 210])
def test_a_logit_that_is_not_a_number_is_seen_in_the_log_prob(place, monkeypatch):
    monkeypatch.setattr(draw_kernel, "CHUNK", 64)
    raw = torch.zeros(2, 211, device=DEVICE)
    raw[1, place] = torch.nan
    ones, numbers = torch.ones(2, device=DEVICE), torch.arange(2, device=DEVICE)

    tokens, logprobs = draw_kernel.draw(raw, LogitForm(), ones, numbers, numbers)

    assert logprobs.isnan().tolist() == [False, True]
    assert ((tokens >= 0) & (tokens < 211)).all()
