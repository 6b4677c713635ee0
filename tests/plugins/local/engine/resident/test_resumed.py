"""Later turns attended to in one call are what they are one after the other, and what a whole prompt gives."""

from __future__ import annotations

import pytest
import torch

from rlhf_plugin_local.engine.prefill import CacheWriter
from rlhf_plugin_local.engine.resident import resumed
from rlhf_plugin_local.engine.resident.paged_cache import PagedCache
from rlhf_plugin_local.engine.resident.pages import PAGE
from rlhf_plugin_local.engine.resident.resumed import Resumed, ResumedPrefill
from rlhf_torch.packed import score_matrix
from rlhf_torch.packed.packing import Blocks, PackedLayout

CPU = torch.device("cpu")
H, H_KV, K = 4, 2, 16
PROMPTS = (
    Resumed(length=8, pages=(3, 1), known=2 * PAGE, num_new=5, row=2),
    Resumed(length=16, pages=(), known=0, num_new=16, row=0),
    Resumed(length=24, pages=(4,), known=PAGE, num_new=17, row=1),
    # The row goes on in a copy of the second page, which was filled in part.
    Resumed(length=8, pages=(8, 9), known=PAGE + 7, num_new=6, row=3),
)
OWN_PAGES = {2: (3, 1, 5), 0: (6,), 1: (4, 7), 3: (8, 10)}
"""All pages of each row."""


def attention(prompt_keys, prompt_values, query, known, window, scaling=0.3):
    """Return the attention (N, H, K) of whole prompts, of which the last queries are kept."""
    output = PackedLayout([0, query.shape[2]], CPU).attend(
        0, query, prompt_keys, prompt_values, scaling=scaling, sliding_window=window, softcap=None
    )
    return output[0, known:]


def in_turns(query, key, value, queries, keys, scaling, window):
    """What torch's kernel means, for one sequence after the other."""
    outputs = []
    for number in range(len(queries.offsets) - 1):
        q = query[queries.offsets[number] : queries.offsets[number + 1]]
        k, v = (
            part[keys.offsets[number] : keys.offsets[number + 1]].transpose(0, 1)[None]
            for part in (key, value)
        )
        known = k.shape[2] - len(q)
        whole = torch.cat([q.new_zeros(known, *q.shape[1:]), q]).transpose(0, 1)[None]
        outputs.append(attention(k, v, whole, known, window, scaling))
    assert queries.longest == max(queries.offsets.diff())
    assert keys.longest == max(keys.offsets.diff())
    return torch.cat(outputs)


def filled_cache() -> PagedCache:
    cache = PagedCache(4, 3, 11, torch.float32, CPU)
    for row, pages in OWN_PAGES.items():
        cache.seat(row, [pages])
    draw = torch.Generator().manual_seed(1)
    shape = (11, H_KV, PAGE, K)
    cache.keys[0], cache.values[0] = (torch.randn(*shape, generator=draw) for _ in range(2))
    cache.copy([9], [10], [7])
    return cache


def writer(cache: PagedCache) -> CacheWriter:
    """Writer of the new tokens of each prompt, without those that fill up a multiple."""
    source, rows, positions, start = [], [], [], 0
    for prompt in PROMPTS:
        source += range(start, start + prompt.num_new)
        rows += [prompt.row] * prompt.num_new
        positions += range(prompt.known, prompt.known + prompt.num_new)
        start += prompt.length
    return CacheWriter(
        cache,
        torch.float32,
        source=torch.tensor(source),
        rows=torch.tensor(rows),
        positions=torch.tensor(positions),
    )


@pytest.mark.parametrize("window", [None, 40])
def test_one_call_gives_what_a_call_for_each_prompt_gives(window, monkeypatch):
    draw = torch.Generator().manual_seed(0)
    num_tokens = sum(prompt.length for prompt in PROMPTS)
    query = torch.randn(1, H, num_tokens, K, generator=draw)
    key, value = (torch.randn(1, H_KV, num_tokens, K, generator=draw) for _ in range(2))

    def attended():
        cache = filled_cache()
        prefill = ResumedPrefill(PROMPTS, writer(cache), cache, torch.float32)
        output = prefill.attend(
            0, query, key, value, scaling=0.3, sliding_window=window, softcap=None
        )
        return [
            part[: p.num_new] for part, p in zip(output[0].split(lengths), PROMPTS, strict=True)
        ]

    lengths = [prompt.length for prompt in PROMPTS]
    one_by_one = attended()
    monkeypatch.setattr(resumed, "has_varlen_kernel", lambda query: True)
    monkeypatch.setattr(resumed, "varlen_attention", in_turns)
    at_once = attended()

    for own, other in zip(at_once, one_by_one, strict=True):
        torch.testing.assert_close(own, other, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("in_windows", [False, True])
@pytest.mark.parametrize("window", [None, 40, 4])
def test_what_is_left_of_an_image_sees_all_of_it(in_windows, window, monkeypatch):
    """As a prompt that is computed whole, of which the image's first tokens are in the cache. Where a kernel that knows
    no blocks is, it is not asked."""
    known, new = PAGE + 7, 16
    whole, drawn = known + new, torch.Generator().manual_seed(0)
    parts = [torch.randn(1, heads, whole, K, generator=drawn) for heads in (H, H_KV, H_KV)]
    numbers = torch.full((whole,), -1)
    numbers[known - 3 : known + 5] = 0
    numbers[known + 9 : known + 12] = 1
    options = {"scaling": 0.3, "sliding_window": window, "softcap": None}
    expected = PackedLayout([0, whole], CPU, Blocks(numbers, in_windows)).attend(
        0, *parts, **options
    )
    cache = PagedCache(1, 2, 3, torch.float32, CPU)
    cache.seat(0, [(1, 2)])
    for places in (torch.arange(known), torch.arange(known, whole)):
        where = cache.index(H_KV, torch.zeros_like(places), places)
        cache.write(0, *(part[0, :, places].transpose(0, 1) for part in parts[1:]), where)
    own = torch.arange(new)
    sent = CacheWriter(
        cache, torch.float32, source=own, rows=torch.zeros_like(own), positions=own + known
    )
    prompt = Resumed(length=new, pages=(1, 2), known=known, num_new=new, row=0)
    if window or not in_windows:
        monkeypatch.setattr(resumed, "has_varlen_kernel", lambda query: True)

    actual = ResumedPrefill(
        [prompt], sent, cache, torch.float32, blocks=Blocks(numbers[known:], in_windows)
    ).attend(0, *(part[:, :, known:] for part in parts), **options)

    torch.testing.assert_close(actual, expected[:, known:], atol=1e-6, rtol=1e-5)
    ahead = PackedLayout([0, whole], CPU).attend(0, *parts, **options)[:, known:]
    assert (window is None and in_windows) == torch.allclose(actual, ahead, atol=1e-4)


@pytest.mark.parametrize("sinks", [None, torch.tensor([0.5, -1.0, 0.0, 2.0])])
def test_capped_scores_are_in_memory_in_parts(sinks, monkeypatch):
    """The numbers are those of all at once, and no product has more scores than are allowed."""
    draw = torch.Generator().manual_seed(0)
    num_tokens = sum(prompt.length for prompt in PROMPTS)
    query = torch.randn(1, H, num_tokens, K, generator=draw)
    key, value = (torch.randn(1, H_KV, num_tokens, K, generator=draw) for _ in range(2))
    sizes = []
    whole = score_matrix.materialized_attention

    def watched(query, key, *others, **options):
        sizes.append(query.shape[1] * query.shape[2] * key.shape[2])
        return whole(query, key, *others, **options)

    def attended():
        cache = filled_cache()
        prefill = ResumedPrefill(PROMPTS, writer(cache), cache, torch.float32)
        options = {"scaling": 0.3, "sliding_window": None, "softcap": 2.0, "sinks": sinks}
        with torch.inference_mode():
            return prefill.attend(0, query, key, value, **options)

    at_once = attended()
    most = 2 * H * max(prompt.known + prompt.length for prompt in PROMPTS)  # two queries at once
    monkeypatch.setattr(score_matrix, "MAX_SCORES", most)
    monkeypatch.setattr(score_matrix, "materialized_attention", watched)
    in_parts = attended()

    torch.testing.assert_close(in_parts, at_once)
    assert max(sizes) <= most
    assert len(sizes) > len(PROMPTS)
