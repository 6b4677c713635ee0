"""The weights of a role as an engine or a file gets them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext

from torch import Tensor

from rlhf_plugin_local.backend.role_model import RoleModel

from .partitioned_model import WholeWeights


def served_weights(role: RoleModel, *, shared: bool) -> Mapping[str, Tensor]:
    """Return the weights by Hugging Face names, merged where there is an adapter.

    Args:
        shared: stage 3: no rank has all, so each is collected when it is read, and an adapter's all at once.
    """
    model = role.lm.model
    if role.adapter is not None:
        with whole(role) if shared else nullcontext():
            return {name: t.detach().clone() for name, t in role.adapter.served_weights(model)}
    state = dict(model.state_dict())
    if not shared:
        return {name: tensor.detach() for name, tensor in state.items()}
    return WholeWeights(state, dict(model.named_parameters(remove_duplicate=False)))


def whole(role: RoleModel) -> AbstractContextManager[None]:
    """Collect all of a shared role's parameters for a while, on every rank."""
    import deepspeed

    context: AbstractContextManager[None] = deepspeed.zero.GatheredParameters(
        list(role.parameters())
    )
    return context
