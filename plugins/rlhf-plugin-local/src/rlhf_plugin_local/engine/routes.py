"""Experts that tokens went to, kept beside their keys: what a sequence shares with another, it shares here too.

Axes: ``A`` rows or pages of a cache, ``B`` positions of each, ``M`` tokens, ``L`` layers with experts, ``k`` experts of
a token.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlhf_core.contracts import EngineSpec
from rlhf_torch.experts.choices import ExpertChoices, choices_of
from rlhf_torch.models.modeling import CausalLM
from rlhf_torch.packed.attention import Layout
from rlhf_torch.vision.pictures import PackedImages


class CachedRoutes:
    """Ids (A, B, L, k), allocated with the first tokens.

    Args:
        choices: of the model's routers.
        rows: A.
    """

    def __init__(self, choices: ExpertChoices, rows: int, device: torch.device) -> None:
        self._choices, self._rows, self._device = choices, rows, device
        self._taken: list[Tensor] = []
        self._ids: Tensor | None = None

    def hidden(
        self,
        lm: CausalLM,
        tokens: Tensor,
        positions: Tensor,
        layout: Layout,
        images: PackedImages | None = None,
    ) -> Tensor:
        """Return the model's hidden states, and take down the experts of its tokens for ``write``."""
        with self._choices.taken_down() as self._taken:
            return lm.hidden(tokens, positions, layout, images)

    def reserve(self, positions: int) -> None:
        """Make room for B = ``positions``, keeping what is stored."""
        if self._ids is not None and self._ids.shape[1] >= positions:
            return
        shape = (self._rows, positions, *self._choices.shape)
        ids = torch.zeros(shape, dtype=self._choices.dtype, device=self._device)
        if self._ids is not None:
            ids[:, : self._ids.shape[1]] = self._ids
        self._ids = ids

    def write(self, index: Tensor, source: Tensor | None = None) -> None:
        """Store the experts of the tokens of the last pass at ``index`` (M,) of the flattened positions.

        Args:
            source: (M,) which of the pass's tokens; None: all.
        """
        assert self._ids is not None, "reserved before"
        taken = torch.stack(self._taken, dim=1)  # (N, L, k)
        self._taken = []
        taken = (taken if source is None else taken[source]).to(self._ids.dtype)
        self._ids.flatten(0, 1).index_copy_(0, index, taken)

    def move(self, source: Tensor, target: Tensor, used: int) -> None:
        """Copy the first ``used`` positions of the rows ``source`` onto the rows ``target``."""
        if self._ids is not None:
            self._ids[target, :used] = self._ids[source, :used]

    def read(self, rows: Sequence[int], length: int) -> NDArray[np.signedinteger]:
        """Return (length, L, k) the first ids of rows that follow each other."""
        assert self._ids is not None, "written before"
        ids = self._ids[torch.tensor(rows, device=self._device)]
        return ids.flatten(0, 1)[:length].cpu().numpy()

    def clear(self) -> None:
        """Free the memory."""
        self._ids = None


def choices_for(lm: CausalLM, spec: EngineSpec) -> ExpertChoices | None:
    """Return the choices of the routers of the model that is served; None: nobody asked for routes.

    Raises:
        ConfigError: the model is no mixture of experts, or one of an unknown kind.
    """
    return choices_of(lm.model, "algo.correction.replay_routes") if spec.returns_routes else None
