"""Every formula by hand on a pencil-sized model, and on a published shape against seconds that were computed apart."""

import pytest

from rlhf_plugin_plan.model.activations import AdaptedLayer
from rlhf_plugin_plan.model.adapters import AdapterCounts
from rlhf_plugin_plan.seconds.work import (
    Decoding,
    EngineRates,
    decode,
    forward_flops,
    gradient_bytes,
    prompts,
    sequences,
    training_flops,
)

FLOPS, BANDWIDTH = 790e12, 4.3e12
UNIT = EngineRates(flops=1.0, bandwidth=1.0, weight_bytes=2, kv_token_bytes=8)
"""Seconds are then operations or bytes."""


def test_prefilling_one_prompt_by_hand(pencil):
    # 3 tokens x 2 x 34, 6 pairs x 4 x 2, one token at the head x 2 x 10
    assert forward_flops(pencil, prompts(1, 3)) == 204 + 48 + 20


def test_passes_over_sequences_by_hand(pencil):
    work = sequences(2, 3, 2)  # 10 tokens, 2 x 15 pairs, 4 positions of the head

    assert (work.tokens, work.pairs, work.head_tokens) == (10, 30, 4)
    assert forward_flops(pencil, work) == 680 + 240 + 80
    assert forward_flops(pencil, work, head=False) == 680 + 240
    assert training_flops(pencil, work) == 3 * 1000 + 0.5 * 240
    assert training_flops(pencil, work, recompute=True) == 3 * 1000 + 120 + 920


def test_one_decode_step_by_hand(pencil):
    # Responses of 2 tokens take one step: batch 2, matmuls 2 x 2 x 44 = 176 operations (88 bytes are less);
    # KV: 2 sequences x (4 read + 1 written) x 8 bytes = 80 (attention's 2 x 4 x 8 operations are less).
    done = decode(pencil, [2, 2], 3, 2, UNIT)

    assert done == Decoding(seconds=176 + 80, steps=1, requests=2)


def test_places_are_filled_as_sequences_end(pencil):
    """Lengths 2, 4, 3 in 2 places: steps 1 | 3 together, then 2 beside what is left of the 3."""
    done = decode(pencil, [2, 4, 3], 3, 2, UNIT)

    assert (done.steps, done.requests) == (3, 1 + 3 + 2)


def test_decode_agrees_with_a_loop_over_single_steps(pencil):
    lengths, prompt, cap = [5, 2, 9, 3, 1, 4], 3, 3
    waiting, running, seconds, steps = [n - 1 for n in lengths if n > 1], [], 0.0, 0
    while waiting or running:
        while waiting and len(running) < cap:
            running.append([0, waiting.pop(0)])
        read = sum(prompt + made + 1 for made, _ in running)
        seconds += max(88, 88 * len(running))
        seconds += max(8 * (read + len(running)), 8 * read)
        steps += 1
        running = [[made + 1, end] for made, end in running if made + 1 < end]

    done = decode(pencil, lengths, prompt, cap, UNIT)

    assert done.steps == steps
    assert done.seconds == pytest.approx(seconds)


def test_no_response_takes_no_step(pencil):
    assert decode(pencil, [1, 1], 3, 2, UNIT).steps == 0


def test_the_limits_of_a_published_shape(shape):
    """128 x 8 sequences of 256 + 1024 tokens on an H200.

    Decode: 1023 steps of 2 x 1024 x 493 961 216 / 790e12 s, and 12 288 bytes for each of 1024 sum(256 + j) tokens.
    """
    small, work = shape("qwen2.5-0.5b"), sequences(1024, 256, 1024)
    rates = EngineRates(flops=FLOPS, bandwidth=BANDWIDTH, weight_bytes=2, kv_token_bytes=12_288)

    assert forward_flops(small, work) / FLOPS == pytest.approx(1.640, abs=5e-4)
    assert training_flops(small, work) / FLOPS == pytest.approx(4.966, abs=5e-4)
    assert decode(small, [1024] * 1024, 256, 1024, rates).seconds == pytest.approx(3.612, abs=5e-4)


@pytest.mark.parametrize(
    ("stage", "micro_batches", "expected"),
    [
        (0, 3, 2 * 40 * 0.75),  # one sum of gradients: there and back
        (1, 3, (40 + 20) * 0.75),  # gradients once, weights once
        (2, 3, (3 * 40 + 20) * 0.75),  # gradients for each micro-batch
        (3, 3, (3 * 40 + 6 * 20) * 0.75),  # and the weights twice
    ],
)
def test_bytes_between_ranks_by_hand(stage, micro_batches, expected):
    """10 parameters in bfloat16, gradients in float32, 4 ranks."""
    assert gradient_bytes(20, 4, stage, micro_batches, 40) == expected


def test_gradients_that_travel_in_passing_go_to_their_ranks_at_the_end():
    """10 parameters: 3 micro-batches of gradients in bfloat16, their sum in float32, and the weights."""
    assert gradient_bytes(20, 4, 2, 3, 40, 20) == (3 * 20 + 40 + 20) * 0.75


def test_one_rank_sends_nothing():
    assert gradient_bytes(20, 1, 3, 5, 40) == 0


LAYER = AdaptedLayer(first_norm=True, second_norm=True, attention=True, product=True, own=0)
RANK_1 = AdapterCounts(name="lora", trained=31, matrices=31, added=31, layers=(LAYER,))


def test_fixed_weights_take_4_operations_a_token_and_factors_6(pencil):
    """10 tokens x (4 x 34 + 6 x 31), 3.5 x 30 pairs x 4 x 2, 4 positions of the head x 4 x 10."""
    work = sequences(2, 3, 2)

    assert forward_flops(pencil, work, adapter=RANK_1) == 680 + 240 + 80 + 10 * 2 * 31
    assert training_flops(pencil, work, adapter=RANK_1) == 1360 + 1860 + 3.5 * 240 + 160
    assert training_flops(pencil, work, adapter=RANK_1, head=False) == 1360 + 1860 + 3.5 * 240
    recomputed = training_flops(pencil, work, adapter=RANK_1, recompute=True)
    assert recomputed - training_flops(pencil, work, adapter=RANK_1) == 680 + 240 + 620


def test_an_adapter_that_trains_every_weight_of_the_model_takes_what_full_training_takes(pencil):
    work = sequences(2, 3, 2)
    whole = AdapterCounts(name="whole", trained=50, matrices=34, head=10, layers=(LAYER,))

    assert training_flops(pencil, work, adapter=whole) == training_flops(pencil, work)


def test_layers_below_the_adapter_have_no_backward_pass(pencil):
    work = sequences(2, 3, 2)
    none = AdapterCounts(name="head alone", trained=10, head=10)

    assert training_flops(pencil, work, adapter=none) == 1000 + 2 * 80
