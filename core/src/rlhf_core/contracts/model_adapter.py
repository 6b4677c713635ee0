"""Model adapters (LoRA and the like), which decide the weights that are trained, served and saved."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    import torch


class ModelAdapter(Protocol):
    """Changes a role's model in place after loading, so that the role trains a few parameters beside a fixed base.

    A factory is called as ``factory(config)``. The weights of the base in memory never change, their dtype included:
    models of other roles may have the same parameters in modules of their own.
    """

    @property
    def served_rank(self) -> int | None:
        """The rank of ``factors``, if engines are to serve the adapter beside the base's weights; None: engines get
        ``merged_weights``."""

    def load_options(self) -> Mapping[str, Any]:
        """Return further arguments of ``from_pretrained``, such as ``quantization_config``; most adapters: none.

        Raises:
            ConfigError: a library is missing, or this machine does not support the options.
        """

    def wrap(self, model: torch.nn.Module, seed: int) -> torch.nn.Module:
        """Change the Transformers model in place and return it; parameters that stay fixed have ``requires_grad`` off.

        The adapter's parameters have the dtype of the base's floating parameters, and are the same for the same seed,
        on every rank. The global random state is left as it was.

        ``rlhf plan`` gives it a model on the meta device, whose tensors have shapes and no numbers, and counts
        parameters and kept activations in the result. An adapter that reads weights here may let torch's error pass: it
        is then planned like full training.

        Raises:
            ConfigError: the options do not fit the model.
        """

    def disabled(self, model: torch.nn.Module) -> AbstractContextManager[None]:
        """Return a context in which the model computes what it computed before its first update, to the bit.

        That is the output of the base, unless the adapter continues an earlier training (``Config.continued_from``).
        """

    def training(self, model: torch.nn.Module, seed: int) -> AbstractContextManager[None]:
        """Return a context for the forward and backward passes of one optimizer update.

        The adapter's dropout is active in it and nowhere else; it depends on the seed alone, and the global random
        state is left as it was.
        """

    def factors(self, model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield ``MODULE.lora_A`` (r, in) and ``MODULE.lora_B`` (out, r) for each adapted module.

        The product B A is what the adapter adds to the weight of MODULE, whose name is that in the plain model: scaling
        is in B. Dtype: that of the adapter's parameters. Called only if ``served_rank`` is not None.
        """

    def unpacked_weights(self, model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the weight of each linear layer that is held in 4 bits, by its name in the plain model, as the model
        computes with it: unpacked to the dtype of the base's floating parameters.

        Called only if ``served_rank`` is not None and ``load_options`` quantize. The base never changes, so the results
        are the same whenever it is called.
        """

    def merged_weights(self, model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield all tensors of the plain model's ``state_dict()``, under its names, with the adapter merged into them.

        Merged weights are computed in float32 from the untouched base and rounded once.
        """

    def save(self, model: torch.nn.Module, folder: str) -> None:
        """Write the adapter's weights and settings; as a PEFT folder that names the base, if PEFT has such adapters."""


@runtime_checkable
class ScalesRates(Protocol):
    """A model adapter with parameters whose learning rate differs from the optimizer's."""

    def rate_factor(self, name: str) -> float:
        """Return the factor, above 0, on the learning rate of the trained parameter with this name in the model."""
