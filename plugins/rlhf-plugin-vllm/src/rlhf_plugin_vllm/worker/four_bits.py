"""Weights of a base that the trainer holds in 4 bits, on their way into vLLM's model, in the trainer's numbers.

A weight packs to the same bits on each side, and the trainer computes with what they are unpacked to. So a worker packs
each weight of the files as the trainer does, unpacks it, and gives vLLM the result, one weight at a time. Weights that
are in 4 bits in their files are only unpacked. The digest of the unpacked weights shows whether both sides agree.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn
from vllm.config import ModelConfig

from rlhf_core import MissingDependency
from rlhf_weights import slot_for

from .recorder import CopyRecorder, Placed

STATE = "quant_state.bitsandbytes__"
"""Beginning of the name of a packed weight's settings in a file, behind the weight's own name."""


@contextmanager
def _float32_by_default() -> Iterator[None]:
    """Context in which new tensors are float32, such as bitsandbytes' scales and their offset.

    vLLM makes its model's dtype the default while it loads. In bfloat16 the offset would be rounded, and each weight
    with it.
    """
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


class FourBits:
    """Unpacks the weights that the trainer holds in 4 bits.

    Args:
        settings: ``EngineSpec.quantization``.

    Raises:
        MissingDependency: bitsandbytes is not installed.
        ValueError: the settings are not those of bitsandbytes' 4 bits.
    """

    def __init__(
        self, settings: Mapping[str, Any], model: ModelConfig, device: torch.device
    ) -> None:
        if not settings.get("load_in_4bit"):
            raise ValueError(
                f"the base is quantized by {settings.get('quant_method', 'an unknown method')}; this engine unpacks "
                "bitsandbytes' 4 bits alone. Take --actor.adapter qlora, or an engine that shares the trainer's model"
            )
        try:
            self._library: Any = import_module("bitsandbytes")
        except ImportError as error:
            raise MissingDependency(
                "a base in 4 bits needs bitsandbytes in vLLM's environment too: pip install 'bitsandbytes>=0.50'"
            ) from error
        self._settings, self._dtype, self._device = settings, model.dtype, device
        self._names = _packed_names(settings, model)
        self._pieces: dict[str, dict[str, Tensor]] = {}
        """Tensors of packed weights of which not all have come yet, by the weight's name and their own."""
        self.recorder = _Watcher()

    def unpacked(self, weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        """Yield all weights of the files, those that the trainer packs as it computes with them.

        Raises:
            ValueError: a packed weight lacks a part.
        """
        for name, tensor in weights:
            weight, part = _owner(name, self._names)
            if weight is None:
                yield name, tensor
            elif (whole := self._take(weight, part, tensor)) is not None:
                self.recorder.watch(weight, whole)
                yield weight, whole
                self.recorder.rest()
        if self._pieces:
            weight, pieces = next(iter(self._pieces.items()))
            raise ValueError(
                f"the files lack a part of the packed weight {weight}: they have {', '.join(pieces)}"
            )

    def placed(self) -> dict[str, Placed]:
        """Return the parts of vLLM's parameters that each unpacked weight was copied to, by the weight's name.

        Raises:
            ValueError: vLLM copied a weight in a way that cannot be read back, or the files lack it.
        """
        placed = self.recorder.placed
        for name in sorted(self._names):
            if name not in placed:
                raise ValueError(
                    f"the model's files lack {name}, which the trainer holds in 4 bits"
                )
            if not placed[name].parts:
                raise ValueError(
                    f"vLLM keeps {name} in a form in which it cannot be read back, so it cannot be compared with the "
                    "trainer's. Take an engine that shares the trainer's model"
                )
        return placed

    def _take(self, name: str, part: str, tensor: Tensor) -> Tensor | None:
        """Return the unpacked weight once all of its tensors have come."""
        if not part and tensor.is_floating_point():
            return self._round_trip(tensor)
        pieces = self._pieces.setdefault(name, {})
        pieces[part] = tensor
        if not _is_complete(pieces):
            return None
        return self._unpack(self._pieces.pop(name))

    @_float32_by_default()
    def _round_trip(self, weight: Tensor) -> Tensor:
        """Pack a weight as ``from_pretrained`` does, and unpack it."""
        packed = self._library.nn.Params4bit(
            weight.to(self._dtype),
            requires_grad=False,
            quant_type=self._settings["bnb_4bit_quant_type"],
            compress_statistics=self._settings["bnb_4bit_use_double_quant"],
        ).to(self._device)
        return self._plain(packed.data, packed.quant_state)

    @_float32_by_default()
    def _unpack(self, pieces: Mapping[str, Tensor]) -> Tensor:
        """Unpack a weight that is in 4 bits in the files."""
        parts = {part: tensor for part, tensor in pieces.items() if part}
        state = self._library.functional.QuantState.from_dict(parts, self._device)
        return self._plain(pieces[""].to(self._device), state)

    def _plain(self, packed: Tensor, state: Any) -> Tensor:
        weight: Tensor = self._library.functional.dequantize_4bit(packed, state)
        return weight.to(self._dtype).contiguous()


class _Watcher(CopyRecorder):
    """Records copies out of one weight at a time, each in memory of its own."""

    def __init__(self) -> None:
        super().__init__(torch.empty(0, dtype=torch.uint8), [])

    def watch(self, name: str, weight: Tensor) -> None:
        """Record copies out of ``weight`` from now on."""
        slot = slot_for(name, weight, 0)
        self._slots, self._starts = [slot], [0]
        self._base = weight.data_ptr()
        self._end = self._base + weight.nbytes
        self.placed[name] = Placed(slot, [])

    def rest(self) -> None:
        """Record nothing until ``watch``: the weight's memory may be used for something else."""
        self._end = self._base


def _owner(name: str, packed: set[str]) -> tuple[str | None, str]:
    """Return the packed weight that a tensor of the files belongs to, and the tensor's name within it; None: it belongs
    to none."""
    if name in packed:
        return name, ""
    weight, dot, part = name.partition(".weight.")
    owner = f"{weight}.weight"
    return (owner, part) if dot and owner in packed else (None, "")


def _is_complete(pieces: Mapping[str, Tensor]) -> bool:
    states = [tensor for part, tensor in pieces.items() if part.startswith(STATE)]
    if not states:
        return False
    wanted = {"", "absmax", "quant_map"}
    if "nested_blocksize" in json.loads(bytes(states[0].tolist())):
        wanted |= {"nested_absmax", "nested_quant_map"}
    return wanted <= pieces.keys()


def _packed_names(settings: Mapping[str, Any], config: ModelConfig) -> set[str]:
    """Return the names of the weights that Transformers packs when it loads this model."""
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig
    from transformers.quantizers import AutoHfQuantizer

    with torch.device("meta"):
        model: nn.Module = AutoModelForCausalLM.from_config(
            config.hf_config, trust_remote_code=config.trust_remote_code
        )
    known = {name: value for name, value in settings.items() if not name.startswith("_")}
    quantizer: Any = AutoHfQuantizer.from_config(
        BitsAndBytesConfig.from_dict(known), pre_quantized=False
    )
    quantizer.preprocess_model(model, device_map=None)
    kind = import_module("bitsandbytes").nn.Linear4bit
    return {f"{name}.weight" for name, module in model.named_modules() if isinstance(module, kind)}
