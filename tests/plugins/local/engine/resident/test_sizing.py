"""Pages of the cache: as many as the slots need, or as the memory holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from rlhf_core import ConfigError
from rlhf_core.contracts import EngineSpec
from rlhf_plugin_local.engine.resident.pages import PAGE
from rlhf_plugin_local.engine.resident.sizing import GIB, cache_pages, page_bytes, state_bytes
from rlhf_testing.errors import has_code
from rlhf_torch.models.loading import load_causal_lm


@pytest.fixture
def spec() -> Callable[..., EngineSpec]:
    def make(max_length: int, in_flight: int = 1) -> EngineSpec:
        return EngineSpec(
            model_path="",
            dtype="float32",
            max_length=max_length,
            max_concurrency=in_flight,
            eos_token_ids=(),
        )

    return make


def test_a_page_has_the_bytes_that_layers_allocate(lm, run, start, make_request):
    async def cache():
        engine = await start(lm)
        await engine.generate(make_request((5, 6, 7)))
        return engine._batch._cache

    paged = run(cache())
    stores = [*paged.keys.values(), *paged.values.values()]

    assert page_bytes(lm) * paged.num_pages == sum(
        store.numel() * store.element_size() for store in stores
    )


def test_pages_of_layers_with_other_heads_are_counted_layer_by_layer(model_folder):
    """Gemma 4 here: keys of 2 heads of 8 numbers in layers with a window, and of 16 in the two others, in float32."""
    lm = load_causal_lm(str(model_folder("gemma4_text")), dtype="float32")

    assert [lm.key_width(layer) for layer in range(5)] == [16, 32, 16, 16, 32]
    assert page_bytes(lm) == 2 * (3 * 16 + 2 * 32) * 4 * PAGE


def test_enough_pages_for_all_slots_and_one_that_belongs_to_nobody(lm, spec):
    single = replace(spec(2 * PAGE + 1, in_flight=5), several_turns=False)

    assert cache_pages(lm, single, 3, None) == 1 + 3 * 3


def test_conversations_that_wait_for_their_next_turn_keep_their_pages(lm, spec):
    assert cache_pages(lm, spec(2 * PAGE + 1, in_flight=5), 3, None) == 1 + 5 * 3


@pytest.mark.parametrize("family", ["qwen3_5_text", "qwen3_next", "olmo_hybrid", "lfm2"])
def test_the_state_of_a_conversation_has_pages_beside_its_keys(
    family, model_folder, run, start, make_request, spec
):
    lm = load_causal_lm(str(model_folder(family)), dtype="float32")

    async def pages_of_a_state():
        engine = await start(lm, family=family)
        await engine.generate(make_request((5, 6, 7)))
        return engine._batch._state_pages.per_state

    kept = run(pages_of_a_state())

    assert kept == -(-state_bytes(lm) // page_bytes(lm)) > 0
    assert cache_pages(lm, spec(PAGE, in_flight=4), 4, None) == 1 + 4 * (1 + kept)
    single = replace(spec(PAGE, in_flight=4), several_turns=False)
    assert cache_pages(lm, single, 4, None) == 1 + 4


def test_less_memory_gives_fewer_pages_and_too_little_is_refused_with_what_suffices(lm, spec):
    page = page_bytes(lm)

    assert cache_pages(lm, spec(PAGE, in_flight=100), 100, 7.5 * page / GIB) == 7
    with pytest.raises(
        ConfigError, match=r"64 tokens.*kv_cache_gib", check=has_code("engine/memory-too-small")
    ):
        cache_pages(lm, spec(PAGE, in_flight=100), 100, 1.5 * page / GIB)


def test_sequences_wait_for_pages_and_none_is_lost(lm, run, start, make_request):
    gib = 4 * page_bytes(lm) / GIB  # three sequences at a time, for eight slots

    async def many():
        engine = await start(lm, kv_cache_gib=gib, max_length=PAGE, slots=8)
        request = make_request((5, 6, 7), seeds=tuple(range(9)), max_new_tokens=20)
        tight = await engine.generate(request)
        wide = await (await start(lm, decode="stepwise")).generate(request)
        return tight, wide, engine._batch

    tight, wide, batch = run(many())

    assert [c.token_ids.tolist() for c in tight] == [c.token_ids.tolist() for c in wide]
    assert batch._pool.num_free + len(batch._histories) == 3
