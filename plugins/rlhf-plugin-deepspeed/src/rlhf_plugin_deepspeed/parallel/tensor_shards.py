"""Matrices that DeepSpeed's AutoTP shards among ranks: refusals, a check of the logits, and whole tensors by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from rlhf_core import ConfigError, PluginError
from rlhf_torch.models.modeling import CausalLM
from rlhf_torch.models.role_model import RoleModel
from rlhf_torch.models.verification import TOLERANCE
from rlhf_torch.packed.packing import PackedLayout

PROBE_LENGTHS = (9, 5)
OPTION = "--backend.deepspeed.tensor_parallel"


def refuse_uneven_heads(role: RoleModel, size: int) -> None:
    """Refuse a role whose matrices ``size`` ranks cannot share evenly.

    Raises:
        ConfigError: ``size`` does not divide the attention heads and the key heads, or the role has an adapter.
    """
    if role.adapter is not None:
        raise ConfigError(
            f"tensor_parallel {size} with an adapter: DeepSpeed shares the model's matrices among ranks, but not the "
            f"adapter's. Set {OPTION} 1.",
            code="deepspeed/shared-adapter",
        )
    heads, kv_heads = role.lm.num_heads, role.lm.num_kv_heads
    if heads % size or kv_heads % size:
        raise ConfigError(
            f"tensor_parallel {size} with {heads} attention heads and {kv_heads} key heads: {size} must divide both "
            f"numbers. Change {OPTION}.",
            code="deepspeed/model-not-divisible",
        )


class ShardingCheck:
    """Comparison of the model's logits before and after DeepSpeed shards its matrices.

    As a context around the sharding it turns DeepSpeed's errors into a ``PluginError`` that names the model.
    """

    def __init__(self, lm: CausalLM) -> None:
        self._lm = lm
        self._before = self._logits()

    def __enter__(self) -> ShardingCheck:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if isinstance(error, ValueError | NotImplementedError):
            raise PluginError(
                f"{type(self._lm.model).__name__}: DeepSpeed cannot share its matrices among ranks ({error}). Set "
                f"{OPTION} 1.",
                code="deepspeed/matrices-not-shared",
            ) from error

    def compare(self) -> None:
        """Refuse a model whose logits have changed.

        Raises:
            PluginError: the logits differ by more than rounding; the message has the difference.
        """
        scale = self._before.abs().max().clamp_min(1e-6)
        difference = float((self._logits() - self._before).abs().max() / scale)
        allowed = TOLERANCE[self._lm.compute_dtype]
        if not difference <= allowed:
            raise PluginError(
                f"{type(self._lm.model).__name__}: with matrices shared among ranks the logits differ by "
                f"{difference:.2g} of the largest (allowed: {allowed:g}), so training would be wrong. Set {OPTION} 1.",
                code="deepspeed/matrices-not-shared",
            )

    @torch.no_grad()
    def _logits(self) -> Tensor:
        offsets = [0, PROBE_LENGTHS[0], sum(PROBE_LENGTHS)]
        layout = PackedLayout(offsets, self._lm.device)
        tokens = torch.arange(offsets[-1], device=self._lm.device) + 1
        return self._lm.logits(self._lm.hidden(tokens, layout.positions(), layout))


class WholeShards(Mapping[str, Tensor]):
    """Tensors of a sharded model by name. Reading a name joins the shards of its tensor from the ranks that have them.

    All ranks must read the same names in the same order.
    """

    def __init__(self, model: nn.Module) -> None:
        self._state: dict[str, Tensor] = dict(model.state_dict())
        self._owners = dict(model.named_parameters(remove_duplicate=False))

    def __iter__(self) -> Iterator[str]:
        return iter(self._state)

    def __len__(self) -> int:
        return len(self._state)

    @torch.no_grad()
    def __getitem__(self, name: str) -> Tensor:
        owner: Any = self._owners.get(name)
        if owner is None or not hasattr(owner, "gather_params"):
            return self._state[name].detach()
        layer = owner.gather_params.__self__
        # A layer collects its weight alone, or weight and bias: it would take a bias alone for a weight.
        together = [layer.weight] if owner is layer.weight else [layer.weight, layer.bias]
        shards = [parameter.data for parameter in together]
        layer.gather_params(together)
        whole: Tensor = owner.data
        for parameter, shard in zip(together, shards, strict=True):
            # ZeRO updates the memory of the shard, so the parameter gets it back. DeepSpeed's own way back copies.
            parameter.data = shard
        return whole
