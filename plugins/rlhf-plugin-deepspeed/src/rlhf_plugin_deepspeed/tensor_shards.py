"""Models whose matrices are shared among ranks by DeepSpeed's AutoTP: what can be, and how the whole is read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from rlhf_core import ConfigError, PluginError
from rlhf_plugin_local.backend.role_model import RoleModel
from rlhf_plugin_local.modeling import CausalLM
from rlhf_plugin_local.packing import PackedLayout
from rlhf_plugin_local.verification import TOLERANCE

PROBE_LENGTHS = (9, 5)
OPTION = "--backend.deepspeed.tensor_parallel"


def refuse_uneven_heads(role: RoleModel, size: int) -> None:
    """Refuse what cannot be shared evenly.

    Raises:
        ConfigError: heads that ``size`` does not divide, or an adapter.
    """
    if role.adapter is not None:
        raise ConfigError(
            f"tensor_parallel {size} with an adapter: its matrices would not be shared along with those that they "
            f"change. Set {OPTION} 1."
        )
    heads, kv_heads = role.lm.num_heads, role.lm.num_kv_heads
    if heads % size or kv_heads % size:
        raise ConfigError(
            f"tensor_parallel {size} with {heads} attention heads and {kv_heads} key heads: it must divide both. "
            f"Change {OPTION}."
        )


class ShardingCheck:
    """Compares the model's logits before and after its matrices are shared.

    As a context it names what DeepSpeed finds wrong with a model while it shares them.
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
                f"{OPTION} 1."
            ) from error

    def compare(self) -> None:
        """Refuse a model that computes something else now.

        Raises:
            PluginError: with the difference.
        """
        scale = self._before.abs().max().clamp_min(1e-6)
        difference = float((self._logits() - self._before).abs().max() / scale)
        allowed = TOLERANCE[self._lm.compute_dtype]
        if not difference <= allowed:
            raise PluginError(
                f"{type(self._lm.model).__name__}: with its matrices shared among ranks its logits differ by "
                f"{difference:.2g} of the largest (allowed: {allowed:g}), so it would be trained wrongly. Set "
                f"{OPTION} 1."
            )

    @torch.no_grad()
    def _logits(self) -> Tensor:
        offsets = [0, PROBE_LENGTHS[0], sum(PROBE_LENGTHS)]
        layout = PackedLayout(offsets, self._lm.device)
        tokens = torch.arange(offsets[-1], device=self._lm.device) + 1
        return self._lm.logits(self._lm.hidden(tokens, layout.positions(), layout))


class WholeShards(Mapping[str, Tensor]):
    """The tensors of a model by name, each put together from the ranks that share it when it is asked for.

    All ranks must ask for the same names in the same order.
    """

    def __init__(self, model: nn.Module) -> None:
        self._state = dict(model.state_dict())
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
        # A layer collects its weight, or both: alone, it would take a bias for a weight.
        together = [layer.weight] if owner is layer.weight else [layer.weight, layer.bias]
        shards = [parameter.data for parameter in together]
        layer.gather_params(together)
        whole: Tensor = owner.data
        for parameter, shard in zip(together, shards, strict=True):
            # Back to the same memory, which ZeRO updates. DeepSpeed's own way back would be a copy of it.
            parameter.data = shard
        return whole
