"""Weights cast once per update instead of once per token, for models that compute below their weights' precision."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from rlhf_torch.models.modeling import CausalLM

from .resident.fused_linears import join_linears


class Precast:
    """A model with all tensors of another, except that its linear layers hold theirs in the compute dtype.

    Autocast converts a float32 weight each time it multiplies. A training step uses each weight a few times; decoding
    would convert the whole model for every token. Results are those of autocast, to the bit. It costs memory: half
    of the linear layers' float32 weights again in bfloat16. Quantized weights stay as they are.

    Args:
        join: multiply layers with the same input in one product, which costs a copy of their weights; see
            ``join_linears``.
        own: copy all other tensors that training changes, too, so that nothing changes before ``refresh``.
    """

    def __init__(self, original: CausalLM, *, join: bool = False, own: bool = False) -> None:
        self.original = original
        shared = [*original.parameters(), *original.buffers()]
        # deepcopy takes what is in its memo as copied already: new modules, the same tensors.
        self.lm = copy.deepcopy(original, {id(tensor): tensor for tensor in shared})
        self._pairs: list[tuple[Tensor, Tensor]] = []
        """(cast weight, the original's weight that it follows)"""
        if join:
            self._pairs += join_linears(self.lm, original, original.compute_dtype)
        kept = {part for module in self.lm.modules() if _reads(module) for part in module.modules()}
        for module in self.lm.modules():
            if isinstance(module, nn.Linear) and module not in kept:
                for name in ("weight", "bias"):
                    self._cast(module, name)
        if own:
            self._copy_rest()
        self.lm.eval()

    @torch.no_grad()
    def refresh(self) -> None:
        """Cast anew from what the original holds now."""
        for cast, source in self._pairs:
            cast.copy_(source)

    @torch.no_grad()
    def is_current(self) -> bool:
        """Return whether all that was cast or copied is what the original holds now."""
        return all(torch.equal(cast, source.to(cast.dtype)) for cast, source in self._pairs)

    def _cast(self, module: nn.Linear, name: str) -> None:
        source = getattr(module, name)
        dtype = self.lm.compute_dtype
        if source is not None and source.is_floating_point() and source.dtype != dtype:
            cast = source.detach().to(dtype)
            setattr(module, name, nn.Parameter(cast, requires_grad=False))
            self._pairs.append((cast, source))

    def _copy_rest(self) -> None:
        """Copy what is still the original's; under an adapter, the base's weights stay, since nothing changes them."""
        every = list(self.original.parameters())
        changing = [one for one in every if one.requires_grad] or every
        wanted = {id(tensor) for tensor in (*changing, *self.original.buffers())}
        copies: dict[int, Tensor] = {}
        """By the original's tensor, so that tied ones stay tied."""
        for module in self.lm.modules():
            parameters = module.named_parameters(recurse=False, remove_duplicate=False)
            buffers = module.named_buffers(recurse=False, remove_duplicate=False)
            for name, source in (*parameters, *buffers):
                if id(source) not in wanted:
                    continue
                if id(source) not in copies:
                    own = source.detach().clone()
                    if isinstance(source, nn.Parameter):
                        own = nn.Parameter(own, requires_grad=False)
                    copies[id(source)] = own
                    self._pairs.append((own, source))
                setattr(module, name, copies[id(source)])


def _reads(module: nn.Module) -> bool:
    """True for PEFT's layers with trained lengths (DoRA), which compute with the weights of their parts themselves: in
    another precision these would give other lengths."""
    return bool(getattr(module, "lora_magnitude_vector", None))
