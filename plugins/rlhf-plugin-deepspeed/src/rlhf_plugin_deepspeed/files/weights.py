"""Weights of a role by Hugging Face names, as the engine and the exported file get them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext

from torch import Tensor, nn

from rlhf_torch.models.role_model import RoleModel
from rlhf_torch.ranks.export import own_weights

from ..partitioned_model import WholeWeights


def served_weights(role: RoleModel, *, shared: bool) -> Mapping[str, Tensor]:
    """Return the weights by Hugging Face names; under an adapter what ``RoleModel.served`` yields.

    Args:
        shared: the weights are partitioned by stage 3. Reading a weight is then a collective call. Under an adapter
            this call itself is one: it collects the adapter for its factors, and all weights at once to merge them.
    """
    model = role.lm.model
    if role.adapter is not None:
        merged = role.adapter.served_rank is None
        needed = role.parameters() if merged else own_weights(role)
        with whole(needed) if shared else nullcontext():
            return {name: t.detach().clone() for name, t in role.served()}
    state = dict(model.state_dict())
    if not shared:
        return {name: tensor.detach() for name, tensor in state.items()}
    return WholeWeights(state, dict(model.named_parameters(remove_duplicate=False)))


def whole(parameters: Iterable[nn.Parameter]) -> AbstractContextManager[None]:
    """Return a context in which every rank has these partitioned parameters whole; a collective call."""
    import deepspeed

    context: AbstractContextManager[None] = deepspeed.zero.GatheredParameters(list(parameters))
    return context
