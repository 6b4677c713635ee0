"""A role's model, sharded by torch (``fully_shard``), and its weights whole again, one tensor at a time.

Each decoder layer is a unit, whose weights ranks collect when the layer is computed. The rest (embeddings, output head,
value head, the part that reads images) is the unit of the whole pass: the head is applied to one chunk of tokens after
the other, in the forward pass and again in the backward pass, and collecting it for each chunk would cost more than the
memory is worth.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from rlhf_core import ConfigError
from rlhf_core.contracts import RoleSpec
from rlhf_torch.models.expert_blocks import expert_blocks
from rlhf_torch.models.layers import compile_layers, decoder_layers
from rlhf_torch.models.modeling import DTYPES
from rlhf_torch.models.role_model import RoleModel
from rlhf_torch.ranks.ranks import Ranks

from .config import FsdpConfig

ResultT = TypeVar("ResultT")


class ShardedRole(nn.Module):
    """Module that runs the function that it is called with, while the weights that a pass needs are whole.

    Torch collects and drops weights around one call of the module that it shards. A role calls several parts of its
    model, and which parts depends on the results that are asked for. So the whole pass is one function.
    """

    def __init__(self, role: RoleModel) -> None:
        super().__init__()
        self.role = role

    def forward(self, work: Callable[[], ResultT]) -> ResultT:
        """Return the result of ``work``."""
        return work()

    def reshard(self) -> None:
        """Drop all weights that were collected. After a pass without a backward pass torch keeps some of them, and
        would compute with them still after an update."""
        for module in self.modules():
            if isinstance(module, FSDPModule):
                module.reshard()


def shard(role: RoleModel, spec: RoleSpec, config: FsdpConfig, ranks: Ranks) -> ShardedRole:
    """Cut the role's weights among the ranks, and return the module of its passes; a collective call.

    Trained weights are float32, and bfloat16 inside of a pass if that is the role's dtype; gradients are summed over
    ranks in float32. The model may be in host memory: one layer after the other moves to the device and is cut.

    Raises:
        ConfigError: the base is quantized, or experts are modules of which each rank would call others.
    """
    _refuse(role, ranks)
    dtype = DTYPES[spec.dtype]
    for parameter in role.parameters():
        parameter.data = parameter.data.to(torch.float32 if parameter.requires_grad else dtype)
    role.lm.pass_dtype = dtype
    if config.compile:
        compile_layers(role.lm.model, joined=True, inside_hooks=True)
    policy = MixedPrecisionPolicy(
        param_dtype=None if dtype == torch.float32 else dtype,
        reduce_dtype=torch.float32,
        cast_forward_inputs=False,  # the model's own code decides, as on one device
    )
    world = dist.group.WORLD
    assert world is not None
    mesh = DeviceMesh.from_group(world, ranks.device.type)
    for layer in decoder_layers(role.lm.model):
        keeps = config.reshard_after_forward
        fully_shard(layer, mesh=mesh, reshard_after_forward=keeps, mp_policy=policy)
    sharded = ShardedRole(role)
    fully_shard(sharded, mesh=mesh, reshard_after_forward=False, mp_policy=policy)
    for module in sharded.modules():
        if isinstance(module, FSDPModule):
            # The update's loss is the sum of the ranks' losses, and gloo can neither average nor scale.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
    # Torch finishes its set-up in the first pass, and looks at which parameters are trained. That pass may be one with
    # the adapter switched off.
    with torch.no_grad():
        sharded(lambda: None)
    sharded.reshard()
    return sharded


def _refuse(role: RoleModel, ranks: Ranks) -> None:
    packed = [name for name, p in role.named_weights() if not p.is_floating_point()]
    if packed:
        raise ConfigError(
            f"backend fsdp with a quantized base: {packed[0]} and {len(packed) - 1} more hold packed integers, which "
            "ranks cannot share. Choose --actor.adapter lora, or --backend torch or deepspeed (zero_stage 0).",
            code="fsdp/quantized-base",
        )
    blocks = expert_blocks(role.lm.model)
    if blocks and ranks.world_size > 1:
        raise ConfigError(
            f"backend fsdp with several ranks: {type(blocks[0]).__name__} has experts as separate modules. Each rank "
            "calls other experts, but this backend sums the gradients of the same parameters on all ranks. Choose "
            "--backend deepspeed with --backend.deepspeed.zero_stage 3.",
            code="fsdp/separate-experts",
        )


def whole_tensor(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a tensor of the model as every rank has it in a pass; a collective call if ranks share it."""
    if not isinstance(tensor, DTensor):
        return tensor.detach()
    return cast("DTensor", tensor.detach().to(dtype)).full_tensor()


def served(role: RoleModel, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    """Yield what ``RoleModel.served`` does, each tensor whole; all ranks must read to the end.

    Ranks collect a tensor when it is read, and merge an adapter into a matrix while the matrix is cut, so no rank ever
    has the whole model.
    """
    trained = [p for p in role.parameters() if p.requires_grad]
    with _replaced(role, trained, lambda p: p.to(dtype)) if role.adapter else nullcontext():
        for name, tensor in role.served():
            yield name, whole_tensor(tensor, dtype)


@contextmanager
def whole(
    role: RoleModel, parameters: Iterable[nn.Parameter], dtype: torch.dtype
) -> Iterator[None]:
    """Return a context in which every rank has these parameters whole, for reading; a collective call."""
    with _replaced(role, parameters, lambda p: whole_tensor(p, dtype)):
        yield


@contextmanager
def _replaced(
    role: RoleModel, parameters: Iterable[nn.Parameter], make: Callable[[Tensor], Tensor]
) -> Iterator[None]:
    """Return a context in which the role's modules have, in place of each of these, what ``make`` returns for it."""
    wanted = {id(parameter) for parameter in parameters}
    places: list[tuple[Any, str, nn.Parameter]] = [
        (module, name, parameter)
        for module in role.modules()
        for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False)
        if id(parameter) in wanted
    ]
    made: dict[int, nn.Parameter] = {}
    for _, _, own in places:
        if id(own) not in made:
            made[id(own)] = nn.Parameter(make(own.detach()), requires_grad=own.requires_grad)
    for module, name, own in places:
        setattr(module, name, made[id(own)])
    try:
        yield
    finally:
        for module, name, own in places:
            setattr(module, name, own)
