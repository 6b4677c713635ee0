"""Parameter groups that all optimizers use: the trainable parameters, split into those with and without decay."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from rlhf_core import ConfigError
from rlhf_core.contracts import NamedParameters, ParameterGroup

if TYPE_CHECKING:
    from torch import nn

    Named = tuple[str, nn.Parameter]

Decay = Annotated[float, Field(ge=0.0, lt=1.0)]
PEAK_LR = "peak learning rate, which the schedule scales"
ALGORITHM = "algorithm"
"""Key of a parameter group with the name of the algorithm that updates the group, where there are two."""

MUON, ADAMW = "muon", "adamw"
_FUSED_DEVICES = frozenset({"cpu", "cuda"})


def trainable_parameters(named_parameters: Iterable[Named]) -> NamedParameters:
    """Return the trainable parameters with their names, in order.

    A parameter with two names (tied embeddings) is returned once, under its first name.

    Raises:
        ConfigError: no parameter is trainable.
    """
    named = NamedParameters.of(named_parameters)
    trainable: dict[int, Named] = {}
    for name, parameter in named:
        if parameter.requires_grad:
            trainable.setdefault(id(parameter), (name, parameter))
    if not trainable:
        raise ConfigError(
            "no parameter is trainable, so there is nothing to optimize; "
            "choose a model adapter that leaves some parameters trainable",
            code="training/nothing-trainable",
        )
    return NamedParameters(tuple(trainable.values()), named.gains)


def by_decay(
    named: NamedParameters, *, weight_decay: float, prefix: str = "", **options: Any
) -> list[ParameterGroup]:
    """Split parameters into ``decay`` and ``no_decay``; an empty parameter group is left out.

    Matrices (projections, embeddings, output heads, adapters, stacked experts) decay; biases, gains of norms and single
    scalars do not, since pulling a gain towards 0 switches its channel off.

    Args:
        prefix: prefix of both parameter groups' names.
        options: further options of both parameter groups.
    """
    decay = named.where(named.is_matrix)
    no_decay = named.where(lambda *pair: not named.is_matrix(*pair))
    groups = [
        ParameterGroup(
            name=f"{prefix}decay",
            named_parameters=decay.pairs,
            options={"weight_decay": weight_decay, **options},
        ),
        ParameterGroup(
            name=f"{prefix}no_decay",
            named_parameters=no_decay.pairs,
            options={"weight_decay": 0.0, **options},
        ),
    ]
    return [group for group in groups if group.named_parameters]


class SplitsByDecay:
    """Base of optimizers that update all parameters alike, but for the decay."""

    config: Any

    def parameter_groups(self, named_parameters: Iterable[Named]) -> list[ParameterGroup]:
        """Split the trainable parameters into ``decay``, the matrices, and ``no_decay``.

        Raises:
            ConfigError: no parameter is trainable.
        """
        return by_decay(
            trainable_parameters(named_parameters), weight_decay=self.config.weight_decay
        )


def torch_groups(groups: Sequence[ParameterGroup]) -> list[dict[str, Any]]:
    """Return the parameter groups in the form of torch's optimizers, one dictionary for each group."""
    return [
        {"name": group.name, "params": [p for _, p in group.named_parameters], **group.options}
        for group in groups
    ]


def can_fuse(groups: Sequence[ParameterGroup]) -> bool:
    """Return whether torch can update all parameters of a device in one kernel: floating point, on a CPU or CUDA."""
    return all(
        parameter.device.type in _FUSED_DEVICES and parameter.is_floating_point()
        for group in groups
        for _, parameter in group.named_parameters
    )
