"""Share of the probability that grammars leave: measured where vLLM masks logits, since its log-probs come after that.

A log-prob that vLLM returns for an answer below a grammar is log p(a) - log Z, where Z is the mass of the allowed
tokens. A trainer has log p(a) alone, so it has to know Z.

Axes: ``R`` rows of a step that are below a grammar, ``V`` vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

import torch
from torch import Tensor


def allowed_mass(free: Tensor, kept: Tensor, temperature: Tensor) -> Tensor:
    """Return (R,) the probability, from 0 to 1, that the kept tokens had.

    Args:
        free: (R, V) logits.
        kept: (R, V) the same, with -inf where a token is not allowed.
        temperature: (R,) divides the logits; above 0.
    """
    scale = temperature[:, None]
    mass = ((kept / scale).logsumexp(1) - (free / scale).logsumexp(1)).exp()
    return mass.clamp(max=1.0)


class Masked(NamedTuple):
    """A row of a step's logits that a mask is laid on.

    Attributes:
        row: its index.
        answer: name of the answer whose next token is drawn from it.
        place: index of that token in the answer.
        temperature: divides the logits; above 0.
    """

    row: int
    answer: str
    place: int
    temperature: float


class MaskedMasses:
    """Masses of the answers of one worker, by the name of the answer and the place of the token in it.

    A step that vLLM computes again, as after a preemption, replaces what was measured at its place.

    Args:
        never_sampled: tokens without probability, which vLLM takes out behind the mask.
    """

    def __init__(self, never_sampled: Sequence[int]) -> None:
        self._never = list(never_sampled)
        self._masses: dict[str, dict[int, Tensor]] = {}

    def measure(self, logits: Tensor, masked: Sequence[Masked], mask: Callable[[], None]) -> None:
        """Have vLLM lay its masks on a step's logits (N, V), and keep the masses of what they leave.

        Args:
            masked: the rows below a mask whose answers are measured.
            mask: lays the masks of the step, in place.
        """
        rows = [each.row for each in masked]
        free = self._without_never(logits[rows])
        mask()
        kept = self._without_never(logits[rows])
        temperature = torch.tensor([each.temperature for each in masked], device=logits.device)
        # The numbers stay on the device until somebody asks: reading them would hold up each step.
        masses = allowed_mass(free, kept, temperature).unbind()
        for each, mass in zip(masked, masses, strict=True):
            self._masses.setdefault(each.answer, {})[each.place] = mass

    def take(self, answer: str, count: int, alive: Collection[str]) -> list[float] | None:
        """Return the masses of an answer's first tokens, NaN where none was measured; None if none was at all.

        Args:
            answer: name that the request has in its ``extra_args``.
            count: number of tokens.
            alive: answers whose masses somebody may still ask for; those of others are dropped.
        """
        found = self._masses.pop(answer, None)
        self._masses = {name: each for name, each in self._masses.items() if name in alive}
        if not found:
            return None
        measured = {place: mass.item() for place, mass in found.items()}
        return [measured.get(place, math.nan) for place in range(count)]

    def _without_never(self, logits: Tensor) -> Tensor:
        """Return a copy (R, V) in which tokens that are never sampled have no probability."""
        taken = logits.float()
        if self._never:
            taken[:, self._never] = -math.inf
        return taken
