"""Sign of a policy that stopped exploring on its way up: its reward stands still, though some prompts still go badly.

A run whose reward has risen has no signal and little entropy at its end for either of two reasons: its task is solved,
or the samples of a prompt have become the same before it was. What tells them apart is the spread of rewards over the
whole batch: where the task is solved it has shrunk; where prompts go well or badly for good it is as wide as before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

WINDOW = 20
"""Steps over which means are taken, and compared with those of as many steps before."""
NO_SIGNAL = 0.9
"""Share of prompts whose samples have equal rewards, from which on nearly nothing is learned."""
SPREAD_LEFT = 0.5
"""Standard deviation of the samples' rewards, as a share of the largest one of the run, from which on there is more to
learn: with rewards of 0 and 1 a batch of which 93 % are right is below."""
RISE = 0.1
"""Rise of the mean reward from window to window that counts as learning, in largest standard deviations."""


class Collapse:
    """Takes the metrics of each step, and says when they show a run that stands still before its task is solved."""

    def __init__(self) -> None:
        self._shares: deque[float] = deque(maxlen=WINDOW)
        self._spreads: deque[float] = deque(maxlen=WINDOW)
        self._means: deque[float] = deque(maxlen=2 * WINDOW)
        self._largest = 0.0

    def note(self, values: Mapping[str, float]) -> str | None:
        """Return the warning, with the likely cause and the options to look at; None: there is no sign of collapse.

        Steps without groups of samples, or without rewards, do not count.
        """
        names = ("group/no_signal", "reward/std", "reward/mean")
        if not all(name in values for name in names):
            return None
        share, spread, mean = (values[name] for name in names)
        self._shares.append(share)
        self._spreads.append(spread)
        self._means.append(mean)
        self._largest = max(self._largest, spread)
        return self._text(values) if self._is_shown() else None

    def _is_shown(self) -> bool:
        if len(self._means) < 2 * WINDOW or self._largest <= 0.0:
            return False
        before, now = self._windows()
        stands_still = now - before <= RISE * self._largest
        unsolved = _mean(self._spreads) >= SPREAD_LEFT * self._largest
        return stands_still and unsolved and _mean(self._shares) >= NO_SIGNAL

    def _windows(self) -> tuple[float, float]:
        """Return the mean reward of the window before, and that of the last one."""
        means = list(self._means)
        return _mean(means[:WINDOW]), _mean(means[WINDOW:])

    def _text(self, values: Mapping[str, float]) -> str:
        before, now = self._windows()
        entropy = values.get("policy/entropy")
        seen = "" if entropy is None else f" (the entropy is {entropy:.2g} nats per token)"
        return (
            f"of {100 * _mean(self._shares):.0f} % of the prompts all samples had the same reward, and the mean reward "
            f"stands still ({before:.3g}, then {now:.3g}), although some prompts get more than others (reward/std "
            f"{_mean(self._spreads):.3g}). The policy has likely stopped trying other answers{seen}; hold the entropy "
            "with --algo.loss.entropy_target or --algo.loss.entropy_coef, lower the optimizer's lr, or draw prompts "
            "whose samples still differ with --data.sampler curriculum"
        )


def _mean(values: deque[float] | list[float]) -> float:
    return sum(values) / len(values)
