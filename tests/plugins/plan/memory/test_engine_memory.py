from dataclasses import replace

import pytest

from rlhf_plugin_plan.machine import assumptions as assumed
from rlhf_plugin_plan.machine.hardware import GIB, find_gpu
from rlhf_plugin_plan.memory.engine_memory import (
    VllmMemoryOptions,
    embedded_memory,
    kv_bytes,
    vllm_memory,
)

H200 = find_gpu("h200")
ENGINE = VllmMemoryOptions(
    memory_share=0.5,
    kv_cache_gib=None,
    bucket_mib=256,
    tensor_parallel=1,
    pipeline_parallel=1,
    graphs=True,
    max_sequences=512,
    kv_width=2,
)


def test_a_token_in_the_cache_by_hand(shape):
    """24 layers x 2 x 2 heads of 64, 2 bytes."""
    assert kv_bytes(shape("qwen2.5-0.5b"), 2) == 12_288


def test_vllm_takes_its_share_whatever_the_model(shape):
    for name in ("qwen2.5-0.5b", "qwen2.5-7b"):
        memory = vllm_memory(shape(name), "bfloat16", ENGINE, H200)
        beside = assumed.ENGINE_GRAPHS
        assert memory.peak_bytes == pytest.approx(0.5 * H200.memory + beside)


def test_a_given_cache_is_what_there_is(shape):
    engine = replace(ENGINE, kv_cache_gib=2.0, graphs=False)

    memory = vllm_memory(shape("qwen2.5-0.5b"), "bfloat16", engine, H200)

    assert memory.parts["KV cache"] == 2 * GIB
    assert memory.kv_tokens == 2 * GIB // 12_288
    assert memory.parts["weights"] == 2 * 494_032_768


def test_weights_that_fill_the_share_leave_no_cache(shape):
    engine = replace(ENGINE, memory_share=0.05)

    memory = vllm_memory(shape("qwen2.5-7b"), "bfloat16", engine, H200)

    assert memory.kv_tokens == 0


def test_tensor_parallelism_splits_weights_and_cache(shape):
    one = replace(ENGINE, kv_cache_gib=4.0)
    two = replace(one, tensor_parallel=2)
    model = shape("qwen2.5-7b")

    whole, half = (vllm_memory(model, "bfloat16", engine, H200) for engine in (one, two))

    assert half.parts["weights"] == whole.parts["weights"] / 2
    assert half.kv_tokens == pytest.approx(2 * whole.kv_tokens, abs=1)


def test_more_ranks_than_key_heads_hold_copies(shape):
    """4 key heads on 8 GPUs: every head twice, so no more tokens than on 4."""
    model = shape("qwen2.5-7b")
    four, eight = (
        vllm_memory(model, "bfloat16", replace(ENGINE, kv_cache_gib=4.0, tensor_parallel=n), H200)
        for n in (4, 8)
    )

    assert eight.kv_tokens == four.kv_tokens


def test_the_bucket_grows_with_the_largest_tensor(shape):
    small = vllm_memory(shape("qwen2.5-0.5b"), "bfloat16", replace(ENGINE, bucket_mib=512), H200)
    large = vllm_memory(shape("qwen2.5-7b"), "bfloat16", ENGINE, H200)

    assert dict(small.in_trainer) == {"bucket for the engine's weights": 512 * 2**20}
    assert dict(large.in_trainer) == {"bucket for the engine's weights": 2 * 152_064 * 3584}


def test_the_embedded_engine_shares_or_copies(pencil):
    options = {"slots": 4, "length": 10}
    shared = embedded_memory(pencil, "bfloat16", "bfloat16", **options, copies_weights=False)
    copied = embedded_memory(pencil, "float32", "bfloat16", **options, copies_weights=True)

    # A token: 2 x 1 layer x 2 numbers x 2 bytes; half as many positions again.
    assert dict(shared.parts) == {"KV cache": 4 * 10 * 8 * 1.5}
    assert copied.parts["weights"] == 4 * 50
    assert copied.parts["weights cast to bfloat16"] == 2 * (34 + 10)


def test_sequences_that_stay_on_the_gpu_have_pages_and_joined_weights(pencil):
    """70 tokens are 2 pages of 64; a token has 8 bytes; the layer's joined matrices D (Q + 2 K + 2 F) numbers."""
    joined = pencil.hidden * (pencil.query_width + 2 * pencil.kv_width + 2 * pencil.ffn)

    def memory(**changes):
        options = {"cache_bytes": 1e9, "joins": True, **changes}
        sizes = {"slots": 4, "length": 70, "copies_weights": False}
        return embedded_memory(pencil, "bfloat16", "bfloat16", **sizes, **options)

    assert memory().parts["KV cache"] == 4 * 128 * 8
    assert memory().parts["joined weights"] == 2 * joined
    assert "joined weights" not in memory(joins=False).parts
    # Six conversations of two pages, of which four are decoded together.
    assert memory(conversations=6).parts["histories between turns"] == 2 * 128 * 8
    assert memory(conversations=6).kv_tokens == memory().kv_tokens == 4 * 128
    assert (
        memory(conversations=6, cache_bytes=9 * 64 * 8).parts["histories between turns"] == 64 * 8
    )
    # Three pages and a bit: what does not hold waits.
    assert memory(cache_bytes=3.5 * 64 * 8).kv_tokens == 3 * 64


def test_the_state_of_each_conversation_waits_with_its_keys(shape):
    """Qwen3.5-0.8B: 6 layers of 2 heads with keys and values of 256; 18 with 16 matrices of 128 x 128 and 3 inputs of
    6144 channels."""
    page = 64 * 6 * 2 * 2 * 256 * 2
    state = 18 * (4 * 16 * 128 * 128 + 2 * 3 * 6144)

    def histories(conversations):
        options = {"cache_bytes": 1e12, "joins": True, "conversations": conversations}
        sizes = {"slots": 4, "length": 128, "copies_weights": False}
        return embedded_memory(
            shape("qwen3.5-0.8b-vision"), "bfloat16", "bfloat16", **sizes, **options
        ).parts.get("histories between turns", 0.0)

    assert histories(0) == 0
    assert histories(4) == 4 * -(-state // page) * page
    assert histories(6) == 6 * -(-state // page) * page + 2 * 2 * page


@pytest.mark.parametrize(
    ("dtype", "joins", "weights"),
    [
        # Embeddings of 10 and norms of 6 stay in float32 beside the casts of 34 and of the tied head, 10.
        ("float32", True, 4 * (50 - 34) + 2 * (34 + 10)),
        ("bfloat16", True, 2 * 50),
        ("bfloat16", False, 2 * 50),
    ],
)
def test_beside_training_every_weight_has_one_copy_and_prefill_its_activations(
    pencil, dtype, joins, weights
):
    """A prefill of 100 tokens has 3 F + 4 D numbers of 2 bytes each."""

    def memory(**changes):
        beside = {"prefill_tokens": 100, "copies_rest": True, **changes}
        sizes = {"slots": 4, "length": 70, "copies_weights": False}
        return embedded_memory(
            pencil, dtype, "bfloat16", **sizes, cache_bytes=1e9, joins=joins, **beside
        ).parts

    copies = ("weights cast to bfloat16", "joined weights", "copy of the other weights")
    assert sum(memory().get(name, 0) for name in copies) == weights
    assert memory()["prefill beside training"] == 100 * 2 * (3 * pencil.ffn + 4 * pencil.hidden)
    assert "copy of the other weights" not in memory(copies_rest=False)


def test_slots_for_adapters_have_factors_of_every_layer_at_the_next_rank(pencil):
    """Rank 3 gets room for 8: 4 slots x 8 x 31 numbers of 2 bytes; 2 versions of 93 numbers; no large bucket."""
    engine = replace(ENGINE, kv_cache_gib=1.0, adapter_rank=3)

    memory = vllm_memory(pencil, "bfloat16", engine, H200, factors=93)

    assert memory.parts["slots for adapters"] == 4 * 8 * 31 * 2
    assert memory.parts["versions of the adapter"] == 2 * 93 * 2
    assert dict(memory.in_trainer) == {"bucket for the engine's weights": 256 * 2**20}


def test_slots_are_a_part_of_vllms_share(shape):
    model = shape("qwen2.5-1.5b")
    plain = vllm_memory(model, "bfloat16", ENGINE, H200)
    adapted = vllm_memory(model, "bfloat16", replace(ENGINE, adapter_rank=16), H200)

    slots = 4 * 2 * 28 * 16 * 41_216
    assert adapted.parts["slots for adapters"] == slots
    assert plain.parts["KV cache"] - adapted.parts["KV cache"] == pytest.approx(slots)


def test_the_numbers_of_slots_and_ranks_are_those_of_the_engine():
    pytest.importorskip("vllm")
    from typing import get_args

    from vllm.config.lora import MaxLoRARanks

    from rlhf_plugin_vllm.arguments import VERSIONS_AT_ONCE

    assert assumed.ADAPTER_SLOTS == VERSIONS_AT_ONCE
    assert sorted(get_args(MaxLoRARanks)) == list(assumed.ADAPTER_RANKS)
