from dataclasses import replace

import pytest

from rlhf_plugin_plan.seconds import measured
from rlhf_plugin_plan.seconds.work import (
    EngineRates,
    decode,
    gradient_bytes,
    sequences,
    training_flops,
)


def test_shares_are_what_the_measurements_came_to(shape):
    """77.9k and 37.6k tokens/s at 0.5B and 1.5B, 30.8k recomputed; limits of 790 TFLOP/s."""
    data = measured.load()

    assert data.training_share(shape("qwen2.5-0.5b"), recompute=False) == pytest.approx(
        0.295, abs=5e-3
    )
    assert data.training_share(shape("qwen2.5-1.5b"), recompute=False) == pytest.approx(
        0.446, abs=5e-3
    )
    assert data.training_share(shape("qwen2.5-1.5b"), recompute=True) == pytest.approx(
        0.472, abs=5e-3
    )


def test_compiled_layers_have_shares_of_their_own_where_they_were_measured(shape):
    """131k and 51.9k tokens/s, 256 sequences of 256 + 1024 tokens; recomputing is one pass more of the same kernels."""
    data = measured.load()

    small = data.training_share(shape("qwen2.5-0.5b"), recompute=False, compiled=True)
    large = data.training_share(shape("qwen2.5-1.5b"), recompute=False, compiled=True)
    recomputed = data.training_share(shape("qwen2.5-1.5b"), recompute=True, compiled=True)

    assert small == pytest.approx(1.2415 / (327_680 / 131_000), rel=1e-3)
    assert large == pytest.approx(3.8853 / (327_680 / 51_900), rel=1e-3)
    assert recomputed == large


@pytest.mark.parametrize(("prompts", "micro_batches", "seconds"), [(8, 5, 5.789), (32, 16, 6.566)])
def test_training_of_7b_on_four_gpus_takes_what_was_measured(
    shape, prompts, micro_batches, seconds
):
    """4 H200, stage 2, 64 sequences a rank, 400 GB/s; the two runs that rate and share of the link come from."""
    data, model = measured.load(), shape("qwen2.5-7b")
    share = data.training_share(model, recompute=False, compiled=True)
    work = sequences(64, 256, 1024)
    work = replace(work, tokens=work.tokens - (64 - prompts) * 256)
    width = 2.0 * model.parameters
    sent = gradient_bytes(width, 4, 2, micro_batches, 2 * width, width)

    predicted = training_flops(model, work) / 790e12 / share + sent / 400e9 / data.passing_share

    assert predicted == pytest.approx(seconds, rel=0.01)


def test_deepspeeds_own_sums_take_a_part_of_the_links_rate(shape):
    """9.39 s in 16 micro-batches, 32 prompts a rank, on 4 H100."""
    data, model = measured.load(), shape("qwen2.5-7b")
    work = sequences(64, 256, 1024)
    work = replace(work, tokens=work.tokens - 32 * 256)
    passes = training_flops(model, work) / 790e12
    sent = gradient_bytes(2.0 * model.parameters, 4, 2, 16, 4.0 * model.parameters)

    predicted = passes / data.training_share(model, recompute=False, compiled=True)
    predicted += sent / 400e9 / data.exchange_share

    assert predicted == pytest.approx(9.39, rel=0.01)


def test_adapters_have_shares_of_their_own_where_they_were_measured(shape):
    """58.1k tokens/s at 1.5B, 16.99k at 7B in 4 bits, 64 rows of 1024 tokens, 4 operations a weight and token."""
    data = measured.load()

    fixed = data.training_share(
        shape("qwen2.5-1.5b"), recompute=False, compiled=True, weights="fixed"
    )
    quantized = data.training_share(
        shape("qwen2.5-7b"), recompute=False, compiled=True, weights="quantized"
    )
    other = data.training_share(shape("qwen2.5-1.5b"), recompute=True, weights="fixed")

    pairs, tokens = 64 * 1024 * 1025 / 2, 65_536
    flops = 4 * (1_310_195_712 + 151_936 * 1536) * tokens + 6 * 18_464_768 * tokens
    flops += 3.5 * 4 * 1536 * 28 * pairs
    assert fixed == pytest.approx(flops / 790e12 / (tokens / 58_100), rel=1e-6)
    flops = 4 * (6_525_288_448 + 152_064 * 3584) * tokens + 6 * 40_370_176 * tokens
    flops += 3.5 * 4 * 3584 * 28 * pairs
    assert quantized == pytest.approx(flops / 790e12 / (tokens / 16_990), rel=1e-6)
    assert other == data.training_share(shape("qwen2.5-1.5b"), recompute=True)


def test_layers_as_they_are_cost_larger_models_less(shape):
    """Recomputed layers were measured at 1.5B, D 1536, alone: 2.120 times the limit where compiled ones take 1.625. At
    7B, D 3584, compiled ones take 1.497. 30B of experts beside D 2048 count as D 2048."""
    data = measured.load()
    large = shape("qwen2.5-7b")

    share = data.training_share(large, recompute=True)
    narrow = data.training_share(replace(large, hidden=2048), recompute=True)

    assert 1 / share == pytest.approx(1.497 + (2.120 - 1.625) * 1536 / 3584, abs=2e-3)
    assert 1 / narrow > 1 / share
    assert share < data.training_share(large, recompute=True, compiled=True)


def test_between_rows_a_share_is_between_and_outside_it_is_the_nearest():
    rows = [measured.Row(10.0, 0.2, 1), measured.Row(1000.0, 0.6, 1)]

    assert measured.between(rows, 100.0) == pytest.approx(0.4)
    assert measured.between(rows, 10.0) == 0.2
    assert measured.between(rows, 1.0) == 0.2
    assert measured.between(rows, 1e6) == 0.6


@pytest.mark.parametrize(
    ("name", "streams", "kv_bytes", "logprobs", "seconds"),
    [
        ("qwen2.5-1.5b", 256, 28_672, 0.0, 4.45),
        ("qwen2.5-1.5b", 256, 28_672, 1.0, 6.5),
        ("qwen2.5-0.5b", 512, 12_288, 0.0, 7.0),
        ("qwen2.5-1.5b", 64, 28_672, 1 / 16, 3.83),
        ("qwen2.5-1.5b", 128, 28_672, 1 / 16, 4.26),
        ("qwen2.5-1.5b", 256, 28_672, 1 / 16, 5.25),
        ("qwen2.5-7b", 64, 57_344, 1 / 16, 5.75),
        ("qwen2.5-7b", 128, 57_344, 1 / 16, 7.1),
        ("qwen2.5-7b", 256, 57_344, 1 / 16, 10.9),
    ],
)
def test_the_rates_of_vllm_explain_the_runs_that_they_come_from(
    shape, name, streams, kv_bytes, logprobs, seconds
):
    """256 + 1024 tokens on one H200; within 15 %, as measured.toml says."""
    rates = EngineRates(flops=790e12, bandwidth=4.3e12, weight_bytes=2, kv_token_bytes=kv_bytes)
    done = decode(shape(name), [1024] * streams, 256, streams, rates)

    predicted = measured.load().decoding_seconds(done, logprobs)

    assert predicted == pytest.approx(seconds, rel=0.15)


@pytest.mark.parametrize(
    ("name", "kv_bytes", "seconds"),
    [("qwen2.5-0.5b", 12_288, 2.02), ("qwen2.5-1.5b", 28_672, 3.66)],
)
def test_the_rate_of_captured_steps_explains_the_runs_that_it_comes_from(
    shape, name, kv_bytes, seconds
):
    """The engine ``embedded`` on one H200, 256 sequences of 256 + 1024 tokens."""
    rates = EngineRates(flops=790e12, bandwidth=4.3e12, weight_bytes=2, kv_token_bytes=kv_bytes)
    done = decode(shape(name), [1024] * 256, 256, 256, rates)

    predicted = measured.load().captured_seconds(done, shape(name).layers)

    assert predicted == pytest.approx(seconds, rel=0.05)


def test_the_longest_response_takes_captured_steps_nearly_alone(shape):
    """Behind 8723 tokens of one step and 16 384 of another few sequences were left: 17.7 s for 7661 steps at 1.5B."""
    rates = EngineRates(flops=790e12, bandwidth=4.3e12, weight_bytes=2, kv_token_bytes=28_672)
    done = decode(shape("qwen2.5-1.5b"), [7661] * 2, 8723, 2, rates)

    predicted = measured.load().captured_seconds(done, 28)

    assert predicted == pytest.approx(41.20 - 23.52, rel=0.15)


def test_every_measurement_says_where_and_when():
    assert "one H200, 2026-11-21" in measured.load().source


MICRO_BATCHES = {
    "qwen2.5-0.5b": (0.50, {64: 7.707, 10: 1.446, 5: 0.779, 3: 0.550}),
    "qwen2.5-1.5b": (1.21, {64: 6.127, 10: 1.581, 5: 1.289, 3: 1.247}),
}
"""Seconds of the GPU alone, and of a step by its number of micro-batches: 64 samples of 256 + 1024 tokens,
`benchmarks/micro_batches.py`, one H200."""


@pytest.mark.parametrize("model", MICRO_BATCHES)
def test_a_step_in_many_micro_batches_waits_for_the_host(shape, model):
    passes, steps = MICRO_BATCHES[model]

    for number, seconds in steps.items():
        predicted = measured.load().training_seconds(passes, shape(model).layers, number)
        assert predicted == pytest.approx(seconds, rel=0.25)
