"""From a loss per token to one number."""

import pytest
import torch

from rlhf_core.math import aggregate

MODES = ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum-norm"]


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("token-mean", 3.0),  # (1 + 3 + 5) / 3 tokens
        ("seq-mean-token-mean", 3.5),  # ((1 + 3) / 2 + 5 / 1) / 2 sequences
        ("seq-mean-token-sum-norm", 0.9),  # (1 + 3 + 5) / (2 sequences * 5 tokens at most)
    ],
)
def test_each_mode_by_hand(mode, expected):
    """The first two numbers are also those of OpenRLHF 0.11.2's ``aggregate_loss``."""
    loss = torch.tensor([[1.0, 3.0], [5.0, 77.0]])
    mask = torch.tensor([[True, True], [True, False]])

    actual = aggregate(loss, mask, mode, num_actions=3, num_sequences=2, max_actions=5)

    assert actual.item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("mode", MODES)
def test_the_gradient_does_not_depend_on_how_a_step_is_cut(mode):
    generator = torch.Generator().manual_seed(0)
    lengths = torch.tensor([5, 1, 3, 0, 4, 2, 5])
    mask = torch.arange(5) < lengths[:, None]
    totals = {"num_actions": int(lengths.sum()), "num_sequences": 7, "max_actions": 6}
    whole = torch.randn(7, 5, dtype=torch.float64, generator=generator).requires_grad_()
    aggregate(whole, mask, mode, **totals).backward()

    for cut in ([7], [3, 4], [1] * 7, [2, 5]):
        parts = whole.detach().clone().requires_grad_()
        shares = [
            aggregate(rows, kept, mode, **totals)
            for rows, kept in zip(parts.split(cut), mask.split(cut), strict=True)
        ]
        torch.stack(shares).sum().backward()
        torch.testing.assert_close(parts.grad, whole.grad, atol=1e-15, rtol=1e-12)


@pytest.mark.parametrize("mode", MODES)
def test_it_equals_a_loop_over_tokens(mode):
    generator = torch.Generator().manual_seed(1)
    lengths = [4, 2, 1]
    loss = torch.randn(3, 4, dtype=torch.float64, generator=generator)
    mask = torch.arange(4) < torch.tensor(lengths)[:, None]

    expected = 0.0
    for row, length in enumerate(lengths):
        for token in range(length):
            weight = {
                "token-mean": 1 / 7,
                "seq-mean-token-mean": 1 / (3 * length),
                "seq-mean-token-sum-norm": 1 / (3 * 10),
            }[mode]
            expected += weight * loss[row, token].item()

    actual = aggregate(loss, mask, mode, num_actions=7, num_sequences=3, max_actions=10)
    assert actual.item() == pytest.approx(expected, rel=1e-12)


def test_the_modes_agree_when_all_rows_have_the_longest_length():
    loss = torch.randn(3, 4, generator=torch.Generator().manual_seed(2))
    mask = torch.ones(3, 4, dtype=torch.bool)

    values = [
        aggregate(loss, mask, mode, num_actions=12, num_sequences=3, max_actions=4).item()
        for mode in MODES
    ]

    assert values == pytest.approx([values[0]] * 3, rel=1e-6)


@pytest.mark.parametrize("mode", MODES)
def test_nan_at_padding_has_no_effect_on_value_or_gradient(mode):
    loss = torch.tensor([[1.0, float("nan")], [2.0, 3.0]]).requires_grad_()
    mask = torch.tensor([[True, False], [True, True]])

    actual = aggregate(loss, mask, mode, num_actions=3, num_sequences=2, max_actions=2)
    actual.backward()

    assert torch.isfinite(actual)
    assert loss.grad is not None
    assert torch.isfinite(loss.grad).all()
    assert loss.grad[0, 1] == 0


@pytest.mark.parametrize("mode", MODES)
def test_more_padding_changes_nothing(mode):
    loss, mask = torch.tensor([[1.0, 2.0], [3.0, 0.0]]), torch.tensor([[True, True], [True, False]])
    totals = {"num_actions": 3, "num_sequences": 2, "max_actions": 2}
    wide = torch.nn.functional.pad(loss, (0, 4), value=9.0)

    torch.testing.assert_close(
        aggregate(wide, torch.nn.functional.pad(mask, (0, 4)), mode, **totals),
        aggregate(loss, mask, mode, **totals),
    )


def test_half_precision_is_summed_in_single():
    # 1001 is no bfloat16; the nearest one is 1000.
    loss, mask = torch.ones(1, 1001, dtype=torch.bfloat16), torch.ones(1, 1001, dtype=torch.bool)

    actual = aggregate(loss, mask, "token-mean", num_actions=1, num_sequences=1, max_actions=1)

    assert actual.item() == 1001.0


@pytest.mark.parametrize("mode", MODES)
def test_totals_of_zero_are_refused(mode):
    with pytest.raises(ValueError, match="must be positive"):
        aggregate(
            torch.zeros(1, 1),
            torch.zeros(1, 1, dtype=torch.bool),
            mode,
            num_actions=0,
            num_sequences=0,
            max_actions=4,
        )


def test_an_unknown_mode_is_refused():
    # TypeError: with shape checking on, the checker is faster.
    with pytest.raises((ValueError, TypeError), match=r"token_mean[\s\S]*token-mean"):
        aggregate(
            torch.zeros(1, 1),
            torch.ones(1, 1, dtype=torch.bool),
            "token_mean",
            num_actions=1,
            num_sequences=1,
            max_actions=1,
        )
