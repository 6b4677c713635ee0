"""Model adapters (LoRA and the like), which decide the weights that are trained, served and saved."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch


class ModelAdapter(Protocol):
    """Wraps a role's model after loading."""

    def wrap(self, model: torch.nn.Module) -> torch.nn.Module:
        """Return the model to train; parameters that stay fixed have ``requires_grad`` off."""
        ...

    def served_weights(self, model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the weights for the engine by Hugging Face names, merged unless the engine takes adapters."""
        ...

    def save(self, model: torch.nn.Module, folder: str) -> None:
        """Write the adapter's own weights in the format that other tools read."""
        ...
