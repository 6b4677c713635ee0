"""Share of the probability that grammars leave: measured where vLLM masks logits, since its log-probs come after that.

A log-prob that vLLM returns for an answer below a grammar is log p(a) - log Z, where Z is the mass of the allowed
tokens. A trainer has log p(a) alone, so it has to know Z.

Axes: ``R`` rows of a step that are below a grammar, ``V`` vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..names import ANSWER


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


class MaskedMasses:
    """Masses of the answers of one worker, by the name of the answer and the place of the token in it.

    A step that vLLM computes again, as after a preemption, replaces what was measured at its place.

    Args:
        requests: vLLM's states of its requests, by their names.
        mask: vLLM's function that lays the masks of a step on its logits.
        never_sampled: tokens without probability, which vLLM takes out behind the mask.
    """

    def __init__(
        self,
        requests: Mapping[str, Any],
        mask: Callable[[Any, Any, Any, Tensor], None],
        never_sampled: Sequence[int],
    ) -> None:
        self._requests, self._mask = requests, mask
        self._never = list(never_sampled)
        self._masses: dict[str, dict[int, Tensor]] = {}

    def apply(self, scheduled: Any, grammars: Any, batch: Any, logits: Tensor) -> None:
        """Lay the masks of a step on its logits (N, V) as vLLM does, and keep the masses.

        Args:
            scheduled: vLLM's schedule of the step, without speculative tokens.
            grammars: the masks, with the names of their requests.
            batch: the batch of the step, whose rows are those of the logits.
        """
        row_of = {name: row for row, name in enumerate(batch.req_ids)}
        names = [name for name in grammars.structured_output_request_ids if name in row_of]
        rows = [row_of[name] for name in names]
        free = self._without_never(logits[rows])
        self._mask(scheduled, grammars, batch, logits)
        kept = self._without_never(logits[rows])
        params = [self._requests[name].sampling_params for name in names]
        temperature = torch.tensor(
            [each.temperature or 1.0 for each in params], device=logits.device
        )
        # The numbers stay on the device until somebody asks: reading them would hold up each step.
        masses = allowed_mass(free, kept, temperature).unbind()
        for name, row, each, mass in zip(names, rows, params, masses, strict=True):
            read = int(batch.num_computed_tokens_cpu[row]) + scheduled.num_scheduled_tokens[name]
            place = read - self._requests[name].num_prompt_tokens
            self._masses.setdefault(each.extra_args[ANSWER], {})[place] = mass

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
