"""Parameter groups that the optimizers share: which parameters are trained, and which of them decay."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from torch import nn

from rlhf_core import ConfigError
from rlhf_core.contracts import ParameterGroup

Named = tuple[str, nn.Parameter]


def trainable_parameters(named_parameters: Iterable[Named]) -> list[Named]:
    """Return the parameters that are to be trained, in order.

    A parameter that appears under two names (tied embeddings) is taken once, under the first.

    Raises:
        ConfigError: no parameter is trainable.
    """
    trainable: dict[int, Named] = {}
    for name, parameter in named_parameters:
        if parameter.requires_grad:
            trainable.setdefault(id(parameter), (name, parameter))
    if not trainable:
        raise ConfigError(
            "no parameter is trainable, so there is nothing to optimize; "
            "choose a model adapter that leaves some parameters trainable"
        )
    return list(trainable.values())


def by_decay(
    named: Sequence[Named], *, weight_decay: float, prefix: str = "", **options: Any
) -> list[ParameterGroup]:
    """Split parameters by their number of axes into ``decay`` and ``no_decay``; an empty group is left out.

    Two or more axes (projections, embeddings, output heads, adapters) decay; fewer (biases, gains of norms, single
    scalars) do not, since pulling a gain towards 0 switches its channel off. Going by shape needs no list of names,
    which every new architecture would outdate.

    Args:
        prefix: of the groups' names.
        options: of both groups.
    """
    decay = tuple(one for one in named if one[1].dim() >= 2)
    no_decay = tuple(one for one in named if one[1].dim() < 2)
    groups = [
        ParameterGroup(
            name=f"{prefix}decay",
            named_parameters=decay,
            options={"weight_decay": weight_decay, **options},
        ),
        ParameterGroup(
            name=f"{prefix}no_decay",
            named_parameters=no_decay,
            options={"weight_decay": 0.0, **options},
        ),
    ]
    return [group for group in groups if group.named_parameters]


def torch_groups(groups: Sequence[ParameterGroup]) -> list[dict[str, Any]]:
    """Return the groups as torch's optimizers take them: dictionaries of anything."""
    return [
        {"name": group.name, "params": [p for _, p in group.named_parameters], **group.options}
        for group in groups
    ]
