"""Statistics over groups of any sizes, in any order."""

import statistics

import pytest
import torch

from rlhf_core.math import (
    group_mean,
    group_size,
    group_std,
    group_top_two,
    group_weighted_mean,
    leave_one_out_mean,
)

GROUP = torch.tensor([0, 1, 0, 2, 1, 0])
VALUES = torch.tensor([1.0, 5.0, 2.0, 7.0, 9.0, 6.0])


def test_group_statistics_by_hand():
    # group 0: 1, 2, 6 (mean 3, squares 4 + 1 + 9 = 14); group 1: 5, 9 (mean 7, squares 4 + 4 = 8); group 2: 7
    torch.testing.assert_close(
        group_mean(VALUES, GROUP), torch.tensor([3.0, 7.0, 3.0, 7.0, 7.0, 3.0])
    )
    sample = torch.tensor([7.0, 8.0, 7.0, 0.0, 8.0, 7.0]).sqrt()
    torch.testing.assert_close(group_std(VALUES, GROUP), sample)
    population = torch.tensor([14 / 3, 4.0, 14 / 3, 0.0, 4.0, 14 / 3]).sqrt()
    torch.testing.assert_close(group_std(VALUES, GROUP, correction=0), population)
    # group 0: (2 + 6) / 2, (1 + 6) / 2, (1 + 2) / 2; the group of one keeps its own value
    torch.testing.assert_close(
        leave_one_out_mean(VALUES, GROUP), torch.tensor([4.0, 9.0, 3.5, 7.0, 5.0, 1.5])
    )
    assert group_size(GROUP).tolist() == [3, 2, 3, 1, 2, 3]


def test_rows_of_one_episode_count_once():
    # Group 0 has episodes {1, 3} (mean 2) and {8}; its mean is 5, not 4. Group 1 has one episode.
    values = torch.tensor([1.0, 8.0, 3.0, 4.0])
    group, episode = torch.tensor([0, 0, 0, 1]), torch.tensor([0, 1, 0, 2])

    assert group_size(group, episode).tolist() == [2, 2, 2, 1]
    assert group_mean(values, group, episode).tolist() == [5.0, 5.0, 5.0, 4.0]
    assert leave_one_out_mean(values, group, episode).tolist() == [8.0, 2.0, 8.0, 4.0]
    # Deviations -4, -2 with weight 1/2 and 3 with weight 1: (8 + 2 + 9) / 2 episodes.
    std = group_std(values, group, episode, correction=0)
    torch.testing.assert_close(std, torch.tensor([9.5, 9.5, 9.5, 0.0]).sqrt())


def test_splitting_an_episode_into_equal_rows_changes_nothing():
    values, group, episode = VALUES, GROUP, torch.arange(6)
    twice = torch.tensor([0, 0, 1, 2, 2, 2, 3, 4, 5])

    for statistic in (group_mean, group_std, leave_one_out_mean):
        split = statistic(values[twice], group[twice], episode[twice])
        torch.testing.assert_close(split, statistic(values, group, episode)[twice])


def test_every_row_an_episode_is_the_default():
    for statistic in (
        group_mean,
        group_std,
        leave_one_out_mean,
        lambda _, *index: group_size(*index),
    ):
        torch.testing.assert_close(
            statistic(VALUES, GROUP, torch.tensor([3, 0, 5, 1, 4, 2])), statistic(VALUES, GROUP)
        )


def test_it_equals_a_loop_over_groups():
    generator = torch.Generator().manual_seed(0)
    group = torch.randint(0, 6, (40,), generator=generator)
    group[:6] = torch.arange(6)
    values = torch.randn(40, dtype=torch.float64, generator=generator)

    for row in range(40):
        members = [values[j].item() for j in range(40) if group[j] == group[row]]
        others = [values[j].item() for j in range(40) if group[j] == group[row] and j != row]
        mean, std = statistics.fmean(members), statistics.stdev(members)
        assert group_mean(values, group)[row].item() == pytest.approx(mean, abs=1e-12)
        assert group_std(values, group)[row].item() == pytest.approx(std, abs=1e-12)
        loo = statistics.fmean(others)
        assert leave_one_out_mean(values, group)[row].item() == pytest.approx(loo, abs=1e-12)


@pytest.mark.parametrize(("value", "size"), [(0.1, 8), (0.3, 7), (0.9, 16), (-1e4 / 3, 64)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_values_that_are_not_exact_in_binary_have_no_spread(value, size, dtype):
    values, group = torch.full((size,), value, dtype=dtype), torch.zeros(size, dtype=torch.int64)

    for correction in (0, 1):
        assert (group_std(values, group, correction=correction) == 0).all()
    assert (values - group_mean(values, group) == 0).all()
    assert (values - leave_one_out_mean(values, group) == 0).all()


def test_sums_keep_what_single_precision_would_lose():
    # 2^24 + 1 is no float32, so eight ones after it would vanish: (2^24 + 8) / 10 = 1677722.4, not 1677721.6.
    values = torch.tensor([0.0, 2.0**24, *[1.0] * 8])

    mean = group_mean(values, torch.zeros(10, dtype=torch.int64))

    assert mean[0].item() == pytest.approx(1677722.4, abs=0.1)


def test_columns_are_separate():
    columns = torch.stack([VALUES, VALUES * 2 - 3], dim=1)

    for statistic in (group_mean, group_std, leave_one_out_mean):
        expected = torch.stack([statistic(column, GROUP) for column in columns.T], dim=1)
        torch.testing.assert_close(statistic(columns, GROUP), expected)


def test_the_order_of_rows_does_not_matter():
    order = torch.tensor([4, 0, 5, 3, 1, 2])

    for statistic in (group_mean, group_std, leave_one_out_mean):
        torch.testing.assert_close(
            statistic(VALUES[order], GROUP[order]), statistic(VALUES, GROUP)[order]
        )


def test_arguments_are_left_as_they_are():
    values, group, episode = VALUES.clone(), GROUP.clone(), torch.tensor([0, 1, 0, 2, 3, 4])

    for statistic in (group_mean, group_std, leave_one_out_mean):
        statistic(values, group, episode)

    assert torch.equal(values, VALUES)
    assert torch.equal(group, GROUP)


def test_the_weighted_mean_by_hand():
    weights = torch.tensor([1.0, 3.0, 2.0, 0.5, 1.0, 1.0])

    # group 0: (1 + 4 + 6) / 4; group 1: (15 + 9) / 4; group 2 alone
    torch.testing.assert_close(
        group_weighted_mean(VALUES, weights, GROUP),
        torch.tensor([2.75, 6.0, 2.75, 7.0, 6.0, 2.75]),
    )


def test_equal_weights_give_the_mean():
    values = torch.randn(6, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    torch.testing.assert_close(
        group_weighted_mean(values, torch.full_like(values, 0.3), GROUP), group_mean(values, GROUP)
    )


def test_values_without_weight_have_no_effect_on_the_weighted_mean():
    nan = float("nan")
    values = torch.tensor([[1.0, nan], [nan, nan], [4.0, 2.0]])
    weights = torch.tensor([[1.0, 0.0], [0.0, 0.0], [2.0, 1.0]])

    actual = group_weighted_mean(values, weights, torch.tensor([0, 0, 0]))

    # (1 + 8) / 3, and 2 alone
    assert actual.tolist() == [[3.0, 2.0]] * 3


def test_a_group_without_any_weight_has_the_weighted_mean_0():
    actual = group_weighted_mean(
        torch.tensor([5.0, float("nan")]), torch.zeros(2), torch.tensor([0, 0])
    )

    assert actual.tolist() == [0.0, 0.0]


@pytest.mark.parametrize(("value", "size"), [(0.1, 8), (0.3, 7), (1e30, 5)])
def test_equal_values_have_exactly_that_weighted_mean(value, size):
    values = torch.full((size,), value)
    weights = torch.arange(1, size + 1, dtype=torch.float32) / 7

    assert torch.equal(
        group_weighted_mean(values, weights, torch.zeros(size, dtype=torch.int64)), values
    )


def test_the_top_two_by_hand():
    largest, second = group_top_two(VALUES, GROUP)

    assert largest.tolist() == [6.0, 9.0, 6.0, 7.0, 9.0, 6.0]
    assert second.tolist() == [2.0, 5.0, 2.0, 7.0, 5.0, 2.0]


def test_the_top_two_are_equal_where_the_largest_is_shared():
    largest, second = group_top_two(
        torch.tensor([3.0, 1.0, 3.0, 0.1, 0.1]), torch.tensor([0, 0, 0, 1, 1])
    )

    assert torch.equal(largest, second)
    assert largest[:3].tolist() == [3.0, 3.0, 3.0]


def test_the_top_two_are_of_episodes():
    # Group 0 has episodes {9, 1} (mean 5), {4} and {3}; none earned 9.
    values = torch.tensor([9.0, 4.0, 1.0, 3.0])
    largest, second = group_top_two(
        values, torch.zeros(4, dtype=torch.int64), torch.tensor([0, 1, 0, 2])
    )

    assert largest.tolist() == [5.0] * 4
    assert second.tolist() == [4.0] * 4


def test_the_top_two_equal_sorting():
    generator = torch.Generator().manual_seed(1)
    values = torch.randint(-3, 4, (40, 2), generator=generator).double()
    group = torch.randint(0, 9, (40,), generator=generator)
    _, group = torch.unique(group, return_inverse=True)

    largest, second = group_top_two(values, group)

    for row in range(40):
        for column in range(2):
            members = sorted(values[group == group[row], column].tolist(), reverse=True)
            assert largest[row, column].item() == members[0]
            assert second[row, column].item() == members[min(1, len(members) - 1)]


def test_rows_of_an_episode_deviate_by_themselves():
    """Both episodes have the mean 0, so the deviation of the means alone would be 0.

    Each row weighs 1/2: the squares add up to 4 * 1/2 = 2, over n - 1 = 1 or n = 2 episodes.
    """
    values = torch.tensor([1.0, -1.0, -1.0, 1.0])
    group, episode = torch.zeros(4, dtype=torch.int64), torch.tensor([0, 0, 1, 1])

    torch.testing.assert_close(group_std(values, group, episode), torch.full((4,), 2.0**0.5))
    assert group_std(values, group, episode, correction=0).tolist() == [1.0] * 4


@pytest.mark.parametrize("correction", [0, 1])
def test_no_row_is_farther_from_the_mean_than_the_bound_on_its_deviation(correction):
    """``sqrt((n - correction) * (n_e - 1/n))`` deviations, for n episodes and n_e rows of the row's own."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(200):
        rows = int(torch.randint(2, 12, (1,), generator=generator))
        _, episode = torch.unique(
            torch.randint(0, rows, (rows,), generator=generator), return_inverse=True
        )
        values = torch.randn(rows, dtype=torch.float64, generator=generator).pow(9)
        group = torch.zeros(rows, dtype=torch.int64)
        size, own = group_size(group, episode).double(), group_size(episode).double()

        distance = (values - group_mean(values, group, episode)).abs()
        bound = ((size - correction).clamp(min=1) * (own - 1 / size)).sqrt()

        largest = bound * group_std(values, group, episode, correction=correction)
        assert (distance <= largest * (1 + 1e-9)).all()


def test_the_bound_on_the_deviation_is_reached():
    # One row of an episode of two is apart, all others are equal: n = 3 episodes, n_e = 2.
    values, episode = torch.tensor([1.0, 0.0, 0.0, 0.0]).double(), torch.tensor([0, 0, 1, 2])
    group = torch.zeros(4, dtype=torch.int64)

    normalized = (values - group_mean(values, group, episode)) / group_std(values, group, episode)

    assert normalized[0].item() == pytest.approx((2 * (2 - 1 / 3)) ** 0.5, rel=1e-12)


def test_a_deviation_equals_a_loop_over_episodes():
    generator = torch.Generator().manual_seed(3)
    episode = torch.randint(0, 9, (30,), generator=generator)
    episode[:9] = torch.arange(9)
    group = episode % 3
    values = torch.randn(30, dtype=torch.float64, generator=generator)

    actual = group_std(values, group, episode)

    for row in range(30):
        episodes = [e for e in range(9) if e % 3 == group[row]]
        rows = {e: [values[j].item() for j in range(30) if episode[j] == e] for e in episodes}
        mean = statistics.fmean(statistics.fmean(rows[e]) for e in episodes)
        squares = sum(statistics.fmean((x - mean) ** 2 for x in rows[e]) for e in episodes)
        assert actual[row].item() == pytest.approx((squares / (len(episodes) - 1)) ** 0.5)


def test_an_episode_without_others_is_its_own_baseline_row_by_row():
    values, none = torch.tensor([1.0, -3.0]), torch.zeros(2, dtype=torch.int64)

    assert torch.equal(leave_one_out_mean(values, none, none), values)
