"""Weights of a role by Hugging Face names, as the engine and the exported file get them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext

from torch import Tensor

from rlhf_torch.models.role_model import RoleModel

from ..partitioned_model import WholeWeights


def served_weights(role: RoleModel, *, shared: bool) -> Mapping[str, Tensor]:
    """Return the weights by Hugging Face names, as ``RoleModel.served`` yields them under an adapter.

    Args:
        shared: the weights are partitioned by stage 3. Reading a weight is then a collective call; with an adapter
            this call collects all weights at once.
    """
    model = role.lm.model
    if role.adapter is not None:
        with whole(role) if shared else nullcontext():
            return {name: t.detach().clone() for name, t in role.served()}
    state = dict(model.state_dict())
    if not shared:
        return {name: tensor.detach() for name, tensor in state.items()}
    return WholeWeights(state, dict(model.named_parameters(remove_duplicate=False)))


def whole(role: RoleModel) -> AbstractContextManager[None]:
    """Return a context in which every rank has all parameters of a partitioned role whole; a collective call."""
    import deepspeed

    context: AbstractContextManager[None] = deepspeed.zero.GatheredParameters(
        list(role.parameters())
    )
    return context
