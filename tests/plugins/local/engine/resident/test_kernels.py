"""Kernels of decoding against the plain operations that they replace; on a CPU with TRITON_INTERPRET=1."""

from __future__ import annotations

import os

import pytest
import torch

pytest.importorskip("triton")

from rlhf_plugin_local.engine.next_token import sampling
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


def rows_of(R, V, scale=4.0):
    """Products of the output head, temperatures, seeds and indices."""
    draw = torch.Generator().manual_seed(V)
    raw = scale * torch.randn(R, V, generator=draw)
    seed = torch.randint(-(2**62), 2**62, (R,), generator=draw)
    temperature = torch.rand(R, generator=draw) + 0.3
    return [x.to(DEVICE) for x in (raw, temperature, seed, torch.arange(R))]


@pytest.mark.parametrize("form", [LogitForm(), LogitForm(0.5, 5.0)])
@pytest.mark.parametrize("delayed", [False, True])
@pytest.mark.parametrize(
    ("R", "V"), [(100, 211), (40, 1024), (40, 1025), (60, 3000), (4, 152_064), (4, 151_937)]
)
def test_the_draw_takes_the_tokens_of_the_plain_one(form, delayed, R, V):
    raw, temperature, seed, index = rows_of(R, V)
    early = index % 2 == 0 if delayed else None
    # A whole block too, which nothing is drawn from.
    place = torch.arange(V, device=DEVICE)
    is_eos = (place % 3 == 0) | ((place >= 1024) & (place < 2048))

    tokens, logprobs = draw_kernel.draw(
        raw, form, temperature, seed, index, early=early, is_eos=is_eos
    )

    logits = form.apply(raw) / temperature[:, None]
    if early is not None:
        logits = logits.masked_fill(early[:, None] & is_eos, -torch.inf)
    expected, expected_logprobs = sampling.draw(logits, seed, index)
    assert tokens.tolist() == expected.tolist()
    torch.testing.assert_close(logprobs, expected_logprobs, atol=5e-6, rtol=5e-6)


@pytest.mark.parametrize("kept", [[3], [1024, 2999], [5, 1030, 2048]])
def test_the_draw_passes_over_products_of_minus_infinity(kept):
    raw, temperature, seed, index = rows_of(20, 3000)
    others = torch.ones(3000, dtype=torch.bool, device=DEVICE)
    others[kept] = False
    raw[:, others] = -torch.inf

    tokens, logprobs = draw_kernel.draw(raw, LogitForm(), temperature, seed, index)

    expected = sampling.draw(raw / temperature[:, None], seed, index)
    assert tokens.tolist() == expected[0].tolist()
    torch.testing.assert_close(logprobs, expected[1], atol=5e-6, rtol=5e-6)


def test_tokens_of_the_draw_follow_the_distribution():
    n = 20_000 if DEVICE == "cuda" else 200
    raw = rows_of(1, 3000, 2.0)[0].expand(n, -1).contiguous()
    ones, seed = torch.ones(n, device=DEVICE), torch.arange(n, device=DEVICE)

    tokens, _ = draw_kernel.draw(raw, LogitForm(), ones, seed, seed)

    # In 31 groups of tokens that lie far apart; 99.9 % quantile of chi-square with 30 degrees of freedom.
    group = torch.arange(3000, device=DEVICE) % 31
    probs = raw[0].double().softmax(-1)
    expected = n * torch.zeros(31, device=DEVICE, dtype=torch.float64).index_add(0, group, probs)
    counts = torch.bincount(group[tokens], minlength=31)
    assert float(((counts - expected) ** 2 / expected).sum()) < 59.7


@pytest.mark.skipif(DEVICE == "cpu", reason="takes minutes in the interpreter")
def test_roundings_change_next_to_no_draw():
    raw, ones = rows_of(1, 152_064, 1.0)[0], torch.ones(500, device=DEVICE)
    other = raw + 1e-6 * torch.randn(raw.shape, generator=torch.Generator().manual_seed(1)).to(raw)
    changed = 0
    for seed in torch.arange(20_000, device=DEVICE).split(500):
        drawn = [
            draw_kernel.draw(x.expand(500, -1).contiguous(), LogitForm(), ones, seed, seed)[0]
            for x in (raw, other)
        ]
        changed += int((drawn[0] != drawn[1]).sum())
    assert changed <= 1


# The interpreter computes with numpy, which warns; a GPU does not.
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(
    ("V", "place"),
    [
        (211, 0),
        (211, 100),
        (211, 210),
        (2100, 5),
        (2100, 1500),
        (2100, 2099),
        (2100, slice(2048, 2100)),
        (2100, slice(0, 2100)),
    ],
)
def test_a_logit_that_is_not_a_number_is_seen_in_the_log_prob(V, place):
    raw = torch.zeros(2, V, device=DEVICE)
    raw[1, place] = torch.nan
    ones, numbers = torch.ones(2, device=DEVICE), torch.arange(2, device=DEVICE)

    tokens, logprobs = draw_kernel.draw(raw, LogitForm(), ones, numbers, numbers)

    assert logprobs.isnan().tolist() == [False, True]
    assert ((tokens >= 0) & (tokens < V)).all()
