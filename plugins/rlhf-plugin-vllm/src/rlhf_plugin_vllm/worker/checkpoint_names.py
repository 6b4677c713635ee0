"""Weights of a trainer's modules by the names, and in the parts, of a published checkpoint, which vLLM's models load.

The names of Transformers' modules differ from those of checkpoints: the tower of a model that sees stands elsewhere,
and the experts of a layer are stacked. Transformers knows the way back, by which it writes folders; a worker goes the
same way. Every part stays a view of the trainer's tensor, so what is loaded can be followed to its place.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from .recorder import makes_contiguous

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel


class CheckpointNames:
    """The way from a model of Transformers to its checkpoint.

    Args:
        config: the model's configuration. Weights keep their names if it is None, or if it or its first architecture
            is of code that comes with the model.
    """

    def __init__(self, config: PretrainedConfig | None) -> None:
        self._model = None if config is None else _without_numbers(config)

    @property
    def tied(self) -> frozenset[str]:
        """Names of the parameters that are others of the model, which checkpoints leave out."""
        return frozenset(getattr(self._model, "all_tied_weights_keys", ()))

    def of(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the weights of a checkpoint, each a view of one of ``weights``, if the checkpoint has no joined ones.

        Args:
            weights: some of the weights, by the names of the model's parameters.
        """
        if self._model is None:
            return dict(weights)
        from transformers.core_model_loading import revert_weight_conversion

        with torch.no_grad(), _Views():
            found: dict[str, Tensor] = revert_weight_conversion(self._model, dict(weights))
        return found


class _Views(TorchDispatchMode):  # torch's __init_subclass__ has no types
    """Answers a contiguous copy of a tensor by the tensor itself: conversions make their parts contiguous."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if makes_contiguous(func, kwargs):
            return args[0]
        return func(*args, **(kwargs or {}))


def _without_numbers(config: PretrainedConfig) -> PreTrainedModel | None:
    """Return the model on the meta device, with the conversions of its checkpoint; None if Transformers lacks it."""
    import transformers
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import Transpose

    (name, *_) = config.architectures or [""]
    model_class = getattr(transformers, name, None)
    if model_class is None or not isinstance(config, model_class.config_class):
        return None
    with torch.device("meta"):
        model: PreTrainedModel = model_class(config)
    ways = get_model_conversion_mapping(model, add_legacy=False)
    for operation in chain.from_iterable(getattr(way, "operations", ()) for way in ways):
        if isinstance(operation, Transpose):
            # Checkpoints have the other order, also where Transformers would write the order of its own modules.
            operation.check_dims = False
    model._weight_conversions = [way for way in ways if _is_published(way)]
    return model


def _is_published(way: Any) -> bool:
    """Return whether published checkpoints have the names to which a conversion leads back.

    A prefix that the whole model lost is that of a larger model, in whose checkpoint it stood; a part's is its own.
    """
    from transformers.core_model_loading import PrefixChange

    return not isinstance(way, PrefixChange) or way.scope_prefix is not None
