"""The closing table: counts and means over all completions of the folder, and what was chosen from them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from .records import AnsweredPrompt


@dataclass(slots=True)
class Mean:
    """A mean in the making, with the smallest and the largest number."""

    count: int = 0
    total: float = 0.0
    least: float = float("inf")
    most: float = float("-inf")

    def add(self, value: float) -> None:
        self.count += 1
        self.total += value
        self.least, self.most = min(self.least, value), max(self.most, value)

    def __str__(self) -> str:
        if not self.count:
            return "none"
        return f"{self.total / self.count:.4g} ({self.least:.4g} to {self.most:.4g})"


@dataclass(slots=True)
class GenerationSummary:
    """Tally of prompts."""

    prompts: int = 0
    stops: Counter[str] = field(default_factory=Counter)
    tokens: Mean = field(default_factory=Mean)
    rewards: defaultdict[str, Mean] = field(default_factory=lambda: defaultdict(Mean))
    unscored: int = 0
    """Completions that a reward failed to score."""
    chosen: int | None = None
    """Rows of the data set; None if none is made."""
    left_out: Counter[str] = field(default_factory=Counter)
    """Prompts from which nothing was chosen, by reason."""

    def add(self, prompt: AnsweredPrompt, *, is_scored: bool) -> None:
        """Count a prompt; ``is_scored`` says whether there are rewards."""
        self.prompts += 1
        for answer in prompt.completions:
            self.stops[answer.stop] += 1
            self.tokens.add(answer.tokens)
            if answer.reward is not None:
                self.rewards["reward"].add(answer.reward)
                for name, reward in answer.rewards.items():
                    self.rewards[f"reward {name}"].add(reward)
            elif is_scored:
                self.unscored += 1

    def rows(self) -> Iterator[tuple[str, str]]:
        """Yield names and values of the table."""
        yield "prompts", str(self.prompts)
        yield "completions", str(self.stops.total())
        yield "tokens of a completion", str(self.tokens)
        yield "ended by", ", ".join(f"{name} {n}" for name, n in self.stops.most_common())
        yield from ((name, str(mean)) for name, mean in sorted(self.rewards.items()))
        if self.unscored:
            yield "without a reward", str(self.unscored)
        if self.chosen is not None:
            yield "rows chosen", str(self.chosen)
            for reason, count in self.left_out.most_common():
                yield f"prompts left out: {reason}", str(count)

    def lines(self) -> str:
        """Return the table as text, with names in one column."""
        rows = list(self.rows())
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)
