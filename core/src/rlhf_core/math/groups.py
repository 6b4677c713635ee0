"""Statistics over groups of rows that an index names: the samples of one prompt.

Groups are an index, not a reshape, so their sizes may differ and their rows need not be adjacent. Rows that share an
episode (several training sequences of one rollout) count once: each of the n rows of an episode weighs 1/n, in the
mean and in the variance alike. A row's own distance from the mean is then a part of the standard deviation that
divides it, which bounds the quotient; a deviation over the means of episodes would be 0 where those happen to agree.

Sums run in float64 on differences from each group's smallest value, so a group of equal values has exactly that mean
and standard deviation 0, also for values such as 0.1 that are not exact in binary.
"""

from __future__ import annotations

from ..lazy import Float, Int, torch


def group_size(
    group: Int[torch.Tensor, " b"], episode: Int[torch.Tensor, " b"] | None = None
) -> Int[torch.Tensor, " b"]:
    """Return, at each row, the number of episodes in its group; the number of rows when ``episode`` is None."""
    members, row = _members(group, episode)
    return _counts(members)[row]


def group_mean(
    values: Float[torch.Tensor, " b *k"],
    group: Int[torch.Tensor, " b"],
    episode: Int[torch.Tensor, " b"] | None = None,
) -> Float[torch.Tensor, " b *k"]:
    """Return, at each row, the mean of its group: the baseline of GRPO and its relatives.

    ``sum_e (1/n_e) sum_j x_ej / n`` over the n episodes e of the group and the n_e rows j of an episode.

    Args:
        values: one or more numbers per row; trailing axes are treated separately.
        group: dense index 0..P-1.
        episode: dense index 0..E-1, each within one group. None: each row is an episode.
    """
    return _exact_mean(values, group, episode).to(values.dtype)


def group_std(
    values: Float[torch.Tensor, " b *k"],
    group: Int[torch.Tensor, " b"],
    episode: Int[torch.Tensor, " b"] | None = None,
    *,
    correction: int = 1,
) -> Float[torch.Tensor, " b *k"]:
    """Return, at each row, the standard deviation of its group; 0 for a group of equal values or of one row.

    ``sqrt(sum_e (1/n_e) sum_j (x_ej - mean)^2 / (n - correction))`` over the n episodes e of the group and the n_e rows
    j of an episode; a group of one episode divides by 1. With one row per episode that is
    ``sqrt(sum (x - mean)^2 / (n - correction))``. Splitting an episode into equal rows changes nothing.

    Normalized values ``(x - mean) / std`` are bounded: at a row of an episode of n_e rows they are at most
    ``sqrt((n - correction) * (n_e - 1/n))`` in size. For one row per episode and the sample standard deviation that is
    the familiar ``(n - 1) / sqrt(n)``. (The deviations d of a group have weights w = 1/n_e with ``sum w = n`` and
    ``sum w d = 0``, so by Cauchy and Schwarz ``w_i d_i^2 * n / (n - w_i) <= sum w d^2``.)

    Args:
        values: one or more numbers per row; trailing axes are treated separately.
        group: dense index 0..P-1.
        episode: dense index 0..E-1, each within one group. None: each row is an episode.
        correction: 1 for the sample standard deviation (as in OpenRLHF, TRL and verl), 0 for the population's.
    """
    exact = values.to(torch.float64)
    deviation = exact - _exact_mean(exact, group, episode)  # (B, ...)
    squares = deviation.square()
    if episode is not None:
        squares = _divide(squares, _counts(episode))
    num_episodes = group_size(group, episode)  # (B,)
    total = _sums(squares, group)[group]  # (B, ...)
    return _divide(total, (num_episodes - correction).clamp(min=1)).sqrt().to(values.dtype)


def leave_one_out_mean(
    values: Float[torch.Tensor, " b *k"],
    group: Int[torch.Tensor, " b"],
    episode: Int[torch.Tensor, " b"] | None = None,
) -> Float[torch.Tensor, " b *k"]:
    """Return, at each row, the mean of the *other* episodes of its group: the baseline of RLOO.

    ``(sum_j x_j - x_i) / (n - 1)`` over the means of the n episodes. A group of one episode has no others: each row's
    own value is returned, so value minus baseline is 0 and the episode teaches nothing, whatever its rows earned.
    """
    members, row = _members(group, episode)
    lowest, offset = _above_lowest(_once_per_episode(values, episode), members)
    num_others = _counts(members) - 1  # (E,)
    others = lowest + _divide(_sums(offset, members)[members] - offset, num_others.clamp(min=1))
    has_others = _align(num_others[row] > 0, values)
    return torch.where(has_others, others[row].to(values.dtype), values)


def group_weighted_mean(
    values: Float[torch.Tensor, " b *k"],
    weights: Float[torch.Tensor, " b *k"],
    group: Int[torch.Tensor, " b"],
) -> Float[torch.Tensor, " b *k"]:
    """Return, at each row, the weighted mean of its group: ``sum_j w_j x_j / sum_j w_j``.

    Values with weight 0 have no effect, whatever they are, nan included. Where all weights are 0 the result is 0. Equal
    values have exactly that mean, whatever the weights. Rows count one by one: an episode of several rows counts with
    the sum of their weights.

    Args:
        values: one or more numbers per row; trailing axes are treated separately.
        weights: weight of each number, not negative.
        group: dense index 0..P-1.
    """
    counts = weights > 0
    exact, weights = values.to(torch.float64), weights.to(torch.float64)
    lowest, _ = _above_lowest(torch.where(counts, exact, torch.inf), group)
    offset = torch.where(counts, exact - lowest, 0.0)
    total = _sums(torch.where(counts, weights, 0.0), group)
    above = _sums(torch.where(counts, weights * offset, 0.0), group) / total.clamp(
        min=torch.finfo(torch.float64).tiny
    )
    return torch.where(total[group] > 0, lowest + above[group], 0.0).to(values.dtype)


def group_top_two(
    values: Float[torch.Tensor, " b *k"],
    group: Int[torch.Tensor, " b"],
    episode: Int[torch.Tensor, " b"] | None = None,
) -> tuple[Float[torch.Tensor, " b *k"], Float[torch.Tensor, " b *k"]]:
    """Return, at each row, the largest and the second largest value among the episodes of its group.

    The two are equal where two episodes share the largest value, and in a group of one. An episode's value is the mean
    of its rows.
    """
    members, row = _members(group, episode)
    exact = _once_per_episode(values, episode)
    largest = -_above_lowest(-exact, members)[0]
    is_largest = exact == largest
    rest = -_above_lowest(torch.where(is_largest, torch.inf, -exact), members)[0]
    shared = _sums(is_largest.to(torch.int64), members)[members] > 1
    second = torch.where(shared | ~torch.isfinite(rest), largest, rest)
    return largest[row].to(values.dtype), second[row].to(values.dtype)


def _exact_mean(
    values: torch.Tensor, group: torch.Tensor, episode: torch.Tensor | None
) -> torch.Tensor:
    """Return ``group_mean`` in float64."""
    members, row = _members(group, episode)
    lowest, offset = _above_lowest(_once_per_episode(values, episode), members)
    return (lowest + _divide(_sums(offset, members)[members], _counts(members)))[row]


def _members(
    group: torch.Tensor, episode: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the group of each member (E,), and the member of each row (B,). Members are episodes, or rows without."""
    if episode is None:
        return group, torch.arange(len(group), device=group.device)
    return group.new_zeros(_size(episode)).scatter(0, episode, group), episode


def _once_per_episode(values: torch.Tensor, episode: torch.Tensor | None) -> torch.Tensor:
    """Return the mean of each episode's rows, (B, ...) -> (E, ...), in float64."""
    exact = values.to(torch.float64)
    if episode is None:
        return exact
    lowest, offset = _above_lowest(exact, episode)
    means = lowest + _divide(_sums(offset, episode)[episode], _counts(episode))
    # All rows of an episode hold the same mean, so it does not matter which one is written last.
    return means.new_zeros(_size(episode), *means.shape[1:]).index_copy(0, episode, means)


def _above_lowest(values: torch.Tensor, index: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return, at each row, the lowest value of its group, and the row's distance above it."""
    start = values.new_full((_size(index), *values.shape[1:]), torch.inf)
    lowest = start.scatter_reduce(0, _align(index, values).expand_as(values), values, "amin")[index]
    return lowest, values - lowest


def _sums(values: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    return values.new_zeros(_size(index), *values.shape[1:]).index_add(0, index, values)


def _counts(index: torch.Tensor) -> torch.Tensor:
    """Return (B,) the number of members of each row's group."""
    return _sums(torch.ones_like(index), index)[index]


def _size(index: torch.Tensor) -> int:
    return int(index.max()) + 1 if len(index) else 0


def _divide(values: torch.Tensor, divisor: torch.Tensor) -> torch.Tensor:
    """Return ``values (B, ...) / divisor (B,)``."""
    return values / _align(divisor, values)


def _align(column: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Return a column (B,) as (B, 1, ...), which broadcasts against ``values``."""
    return column.reshape(-1, *[1] * (values.dim() - 1))
