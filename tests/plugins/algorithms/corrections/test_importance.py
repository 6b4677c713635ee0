"""Every level, mode and gate: an independent loop, limits and invariances."""

import math

import pytest
import torch

from rlhf_core.batch.metric import merge_metrics, metric_values

LEVELS = ("token", "sequence", "geometric")
GATES = ("binary_kl", "tv", "k2", "k3")
HIGH = {"token": 0.15, "sequence": 0.5, "geometric": 0.1}
"""Bounds of divergences that some of the drawn units exceed, and some do not."""

COMBINATIONS = [
    *({"level": level, "mode": "truncate", "high": 1.2} for level in LEVELS),
    *({"level": level, "mode": "clip", "low": 0.9, "high": 1.2} for level in LEVELS),
    *(
        {"level": level, "mode": "mask", "low": 0.8, "high": 1.2, "weight": weight}
        for level in LEVELS
        for weight in (*LEVELS, "off")
    ),
    *({"level": level, "mode": "mask", "high": 1.1, "max_weight": 1.05} for level in LEVELS),
    *(
        {"level": level, "mode": "mask", "gate": gate, "high": HIGH[level]}
        for level in LEVELS
        for gate in GATES
    ),
    *({"level": level, "mode": "truncate", "high": 1.2, "veto": 0.4} for level in LEVELS),
    {"level": "token", "mode": "mask", "low": 0.8, "high": 1.2, "veto": 0.5},
]


def name_of(options):
    return "-".join(str(value) for value in options.values())


every_combination = pytest.mark.parametrize("options", COMBINATIONS, ids=name_of)


def slow_effect(old, rollout, mask, options):
    """What each token is multiplied with, computed number by number."""
    gate, mode, level = options.get("gate", "ratio"), options["mode"], options["level"]
    low, high = options.get("low"), options["high"]
    table = torch.zeros(mask.shape, dtype=torch.float64)
    for row in range(len(mask)):
        places = [column for column in range(mask.shape[1]) if mask[row, column]]
        pairs = [(float(old[row, place]), float(rollout[row, place])) for place in places]
        for place, pair in zip(places, pairs, strict=True):
            judged = statistic(pairs, pair, level, gate)
            if mode != "mask":
                table[row, place] = (
                    min(judged, high) if low is None else max(min(judged, high), low)
                )
                continue
            weight = options.get("weight", "token")
            value = 1.0 if weight == "off" else statistic(pairs, pair, weight, "ratio")
            value = min(value, options.get("max_weight", math.inf))
            table[row, place] = value if (low or 0.0) <= judged <= high else 0.0
        if any(math.exp(old - rollout) < options.get("veto", 0.0) for old, rollout in pairs):
            table[row] = 0.0
    return table


def statistic(pairs, pair, level, gate):
    units = [pair] if level == "token" else pairs
    values = [one_token(math.exp(old), math.exp(rollout), gate) for old, rollout in units]
    total = sum(values) / (len(values) if level == "geometric" else 1)
    return math.exp(total) if gate == "ratio" else total


def one_token(q, p, gate):
    """A log-ratio, or a divergence; q is the trainer's probability and p the sampler's."""
    g = math.log(q / p)
    return {
        "ratio": g,
        "binary_kl": p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q)),
        "tv": abs(p - q),
        "k2": g * g / 2,
        "k3": q / p - 1 - g,
    }[gate]


@every_combination
def test_each_combination_agrees_with_a_slow_loop(drawn, correct, effect, options):
    case = drawn((5, 1, 7, 3, 2), drift=0.9, seed=3)

    actual = effect(correct(case, **options))

    expected = slow_effect(*case, options)
    torch.testing.assert_close(actual, expected, atol=1e-12, rtol=1e-12)
    assert not torch.equal(actual, torch.where(case.mask, (case.old - case.rollout).exp(), 0.0))


@pytest.mark.parametrize("options", [o for o in COMBINATIONS if o["mode"] == "mask"], ids=name_of)
def test_the_drawn_cases_have_units_on_both_sides_of_the_bounds(drawn, correct, options):
    """Otherwise the loop above would compare zeros."""
    case = drawn((5, 1, 7, 3, 2), drift=0.9, seed=3)
    keep = correct(case, **options).keep[case.mask]

    assert 0 < int(keep.sum()) < len(keep)


@every_combination
def test_equal_logprobs_change_nothing(drawn, correct, options):
    case = drawn((5, 1, 7), drift=0.0)
    result = correct(case._replace(rollout=case.old), **options)

    torch.testing.assert_close(result.weights, case.mask.to(result.weights.dtype))
    assert torch.equal(result.keep, case.mask)
    values = metric_values(result.metrics)
    assert values.pop("correction/weight") == 1.0
    assert set(values.values()) == {0.0}


@every_combination
def test_nan_padding_and_its_width_change_nothing(drawn, correct, effect, options):
    case = drawn((5, 1, 7, 3), drift=0.9)
    mask = torch.nn.functional.pad(case.mask, (0, 3))
    old, rollout = (
        torch.nn.functional.pad(column, (0, 3)).masked_fill(~mask, math.nan)
        for column in (case.old, case.rollout)
    )
    expected = correct(case, **options)

    actual = correct(type(case)(old, rollout, mask), **options)

    assert torch.equal(effect(actual)[:, :7], effect(expected))
    assert torch.isfinite(actual.weights).all()
    assert metric_values(actual.metrics) == pytest.approx(
        metric_values(expected.metrics), rel=1e-12
    )


@every_combination
def test_rows_are_independent_and_metrics_merge(drawn, correct, effect, options):
    case = drawn((5, 1, 7, 3), drift=0.9)
    whole = correct(case, **options)
    order = [[2], [0, 3], [1]]

    parts = [correct(type(case)(*(c[rows] for c in case)), **options) for rows in order]

    for rows, part in zip(order, parts, strict=True):
        torch.testing.assert_close(effect(part), effect(whole)[rows])
    merged = merge_metrics(part.metrics for part in parts)
    assert metric_values(merged) == pytest.approx(metric_values(whole.metrics), rel=1e-12)


@every_combination
@pytest.mark.parametrize("difference", [60.0, -60.0, 1e4, -1e4])
def test_long_and_extreme_rows_are_finite_in_float32(correct, options, difference):
    mask = torch.arange(10_000) < torch.tensor([10_000, 1, 0])[:, None]
    old = torch.full(mask.shape, -1.0)

    result = correct((old, old - difference, mask), **options)

    assert result.weights.dtype == torch.float32
    assert torch.isfinite(result.weights).all(), result.weights.max()
    values = metric_values(result.metrics)
    assert all(math.isfinite(value) for value in values.values()), values


@every_combination
def test_no_gradient_flows_through_the_weights(drawn, correct, options):
    case = drawn((5, 1), drift=0.9)
    old, rollout = case.old.requires_grad_(), case.rollout.requires_grad_()

    result = correct(case._replace(old=old, rollout=rollout), **options)

    assert not result.weights.requires_grad


def test_bounds_that_are_never_reached_leave_the_ratio(drawn, correct, effect):
    case = drawn((5, 1, 7), drift=0.9)
    ratio = torch.where(case.mask, (case.old - case.rollout).exp(), 0.0)

    for mode in ("truncate", "mask"):
        result = correct(case, level="token", mode=mode, high=1e6)
        torch.testing.assert_close(effect(result), ratio)


def test_one_token_is_the_same_at_every_level(drawn, correct, effect):
    case = drawn((1, 1, 1, 1), drift=0.9)
    results = [correct(case, level=level, mode="mask", high=1.2, weight=level) for level in LEVELS]

    for result in results[1:]:
        torch.testing.assert_close(effect(result), effect(results[0]))


def test_a_sequence_weight_is_unbiased(correct, effect):
    """Over all responses of two tokens from a vocabulary of three, E_sampler[w f] = E_trainer[f]."""
    p, q = (torch.tensor(v, dtype=torch.float64).log() for v in ([0.5, 0.3, 0.2], [0.3, 0.3, 0.4]))
    pairs = torch.cartesian_prod(torch.arange(3), torch.arange(3))  # (9, 2)
    rollout, old = p[pairs], q[pairs]
    value = torch.arange(9, dtype=torch.float64).square()
    result = correct_case(correct, old, rollout, level="sequence", mode="truncate", high=1e6)

    weighted = (rollout.sum(dim=1).exp() * effect(result)[:, 0] * value).sum()

    torch.testing.assert_close(weighted, (old.sum(dim=1).exp() * value).sum())


def correct_case(correct, old, rollout, **options):
    return correct((old, rollout, torch.ones(old.shape, dtype=torch.bool)), **options)


def test_small_mismatches_of_a_long_response_add_up_in_float32(correct):
    """10,000 tokens that are each 1e-4 nats likelier to the trainer: e^1 for the response, e^0.0001 per token."""
    rollout = torch.full((1, 10_000), -0.5)
    old = rollout + 1e-4
    exact = (old.double() - rollout.double()).sum().exp().item()

    result = correct_case(correct, old, rollout, level="sequence", mode="truncate", high=10.0)

    assert result.weights[0, 0].item() == pytest.approx(exact, rel=1e-6)
    assert exact == pytest.approx(math.e, rel=1e-2)


def test_divergences_of_near_certain_tokens_are_finite(correct):
    """Probabilities of 0 and 1 meet: the binary KL is bounded by ln(1e6) = 13.8."""
    old, rollout = torch.tensor([[-200.0, 0.0]]), torch.tensor([[0.0, -200.0]])

    for high, kept in ((13.0, False), (14.0, True)):
        result = correct_case(
            correct, old, rollout, level="token", mode="mask", gate="binary_kl", high=high
        )
        assert result.keep.tolist() == [[kept, kept]]
        assert torch.isfinite(result.weights).all()


def test_a_batch_without_tokens_is_empty_and_not_an_error(correct):
    empty = torch.zeros(2, 3)
    mask = torch.zeros(2, 3, dtype=torch.bool)

    for options in COMBINATIONS:
        result = correct((empty, empty, mask), **options)
        assert not result.keep.any()
        assert metric_values(result.metrics) == {}


@pytest.mark.parametrize(
    ("veto", "kept"),
    [
        (None, [[True, True, True], [True, True, False]]),
        (0.3, [[True, True, True], [True, True, False]]),
        (0.5, [[False, False, False], [True, True, False]]),  # 0.4 is below it
        (0.95, [[False, False, False], [False, False, False]]),  # and 0.9
    ],
)
def test_a_token_of_too_small_a_ratio_drops_its_row_and_leaves_weights_alone(
    measured, correct, veto, kept
):
    """Token ratios 1.5, 3, 0.4 and 1, 0.9."""
    result = correct(measured, level="token", mode="truncate", high=2.0, veto=veto)

    assert result.keep.tolist() == kept
    expected = torch.tensor([[1.5, 2.0, 0.4], [1.0, 0.9, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(result.weights, expected)


@every_combination
def test_a_veto_that_no_token_reaches_changes_no_bit(drawn, correct, options):
    case = drawn((5, 1, 7, 3), drift=0.9)
    options = {name: value for name, value in options.items() if name != "veto"}

    actual = correct(case, **options, veto=1e-8)

    expected = correct(case, **options)
    assert torch.equal(actual.weights, expected.weights)
    assert torch.equal(actual.keep, expected.keep)
