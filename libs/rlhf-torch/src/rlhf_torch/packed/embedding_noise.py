"""NEFTune: uniform noise on the embeddings of tokens, scaled by the length of each token's own sequence.

Source: Jain et al. 2023, arXiv:2310.05914, algorithm 1. Transformers' hook, which TRL uses, takes the length of the
whole row, so that its noise is smaller the more padding, or the more other sequences, a row has.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from .attention import Layout


def noise_of(
    embeddings: Float[Tensor, "*rows N D"],
    lengths: Int[Tensor, " N"],
    *,
    alpha: float,
    generator: torch.Generator,
) -> Float[Tensor, "*rows N D"]:
    """Return ``alpha / sqrt(L D) * u``, with ``u`` uniform in [-1, 1), in the dtype of the embeddings.

    Args:
        lengths: L, the number of tokens of the sequence that each token belongs to.
        alpha: strength; the norm of a whole sequence's noise is ``alpha / sqrt(3)`` on average, whatever L and D.

    Source: Jain et al. 2023, arXiv:2310.05914, algorithm 1.
    """
    width = embeddings.shape[-1]
    scales = alpha * (lengths * width).to(torch.float32).rsqrt()  # (N,)
    uniform = torch.empty(embeddings.shape, device=embeddings.device)
    uniform.uniform_(-1.0, 1.0, generator=generator)
    return (uniform * scales[:, None]).to(embeddings.dtype)


class EmbeddingNoise:
    """Noise of one model's embeddings, within ``on`` alone.

    Args:
        model: Transformers model, whose ``get_input_embeddings`` turns tokens into embeddings.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self.is_on = False
        """Whether embeddings are noisy, so that they need the layout of their tokens (``of``)."""
        self._layout: Layout | None = None

    @contextmanager
    def on(self, alpha: float, seed: int) -> Iterator[None]:
        """Return a context in which embeddings are noisy, by draws that depend on the seed and on the passes before.

        Args:
            alpha: strength.
        """
        module = self._model.get_input_embeddings()  # type: ignore[operator]
        device = next(self._model.parameters()).device
        generator = torch.Generator(device).manual_seed(seed % 2**63)

        def add_noise(_: nn.Module, inputs: object, output: Tensor) -> Tensor:
            assert self._layout is not None, "embeddings are computed for a layout"
            lengths = self._layout.sequence_lengths(1).to(output.device)
            return output + noise_of(output, lengths, alpha=alpha, generator=generator)

        hook = module.register_forward_hook(add_noise)
        self.is_on = True
        try:
            yield
        finally:
            self.is_on = False
            hook.remove()

    @contextmanager
    def of(self, layout: Layout) -> Iterator[None]:
        """Return a context whose embeddings are those of a layout's tokens."""
        self._layout = layout
        try:
            yield
        finally:
            self._layout = None
