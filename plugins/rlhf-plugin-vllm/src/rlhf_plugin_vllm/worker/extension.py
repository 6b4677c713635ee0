"""The extension of vLLM's workers: registers the loader and the receiver of weights, and adds calls that vLLM lacks.

vLLM imports this module in each worker before it joins the others and makes the model, because the engine arguments
name it as the worker's extension. The import also starts the thread that ends the worker with its owner, and keeps
other users of the machine off the ports of the worker's groups.
"""

from __future__ import annotations

import os
from typing import Any

from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.model_loader import register_model_loader

from rlhf_weights import form_all_locally

from ..images.measuring import measure_where_told
from ..names import LOAD_FORMAT, SPREAD_VARIABLE, TRANSFER_BACKEND, UNPACKED
from .adapter_slots import AdapterSlots
from .loader import PlainWeightsLoader
from .mask_places import measure_masks
from .masked_mass import MaskedMasses
from .receiver import UpdateInfo, WeightReceiver
from .watchdog import end_with_owner

end_with_owner()
if os.environ.get(SPREAD_VARIABLE) == "0":
    form_all_locally()
measure_where_told()
register_model_loader(LOAD_FORMAT)(PlainWeightsLoader)
WeightTransferEngineFactory.register_engine(TRANSFER_BACKEND, WeightReceiver)


class WorkerExtension:
    """Mix-in for vLLM's worker class. The engine calls the methods by ``collective_rpc``; they return plain values."""

    weight_transfer_engine: WeightReceiver
    model_runner: Any
    _rlhf_slots: AdapterSlots | None = None
    _rlhf_masses: MaskedMasses | None = None

    def rlhf_place(self) -> list[str | None]:
        """Return machine and device of this worker, the fields of ``Place``."""
        place = self.weight_transfer_engine.place()
        return [place.machine, place.device]

    def rlhf_missing(self) -> list[str]:
        """Return the names of the parameters that received nothing in the last update."""
        return self.weight_transfer_engine.missing()

    def rlhf_unread(self) -> list[str]:
        """Return the names of the weights that the model leaves out because nothing reads them."""
        return self.weight_transfer_engine.unread()

    def rlhf_served(self) -> list[dict[str, Any]]:
        """Return the fields of ``HeldWeight`` for each served weight of which this worker holds a part."""
        return self.weight_transfer_engine.served()

    def rlhf_begin_adapter(self, number: int, keep: list[int]) -> None:
        """Begin a version of the adapter, and drop all other versions but ``keep``."""
        if self._rlhf_slots is None:
            # vLLM puts the manager of adapters on the model.
            manager: Any = self.weight_transfer_engine.model.lora_manager
            self._rlhf_slots = AdapterSlots(manager)
        self._rlhf_slots.begin(number, keep)

    def rlhf_take_factors(self, update: dict[str, Any]) -> None:
        """Copy the factors of one bucket, or of all buckets that the link brings.

        Args:
            update: fields of ``UpdateInfo``.
        """
        assert self._rlhf_slots is not None
        with self.weight_transfer_engine.buckets(UpdateInfo(**update)) as buckets:
            for slots, bucket in buckets:
                self._rlhf_slots.take(slots, bucket)

    def rlhf_finish_adapter(self) -> None:
        """Make vLLM ready to compute with the version of which all factors have come."""
        assert self._rlhf_slots is not None
        self._rlhf_slots.finish()

    def rlhf_served_base(self) -> list[dict[str, Any]]:
        """Return the fields of ``HeldWeight`` for each weight of a base in 4 bits of which this worker holds a part."""
        return self.weight_transfer_engine.held(
            getattr(self.weight_transfer_engine.model, UNPACKED)
        )

    def rlhf_served_adapter(self, number: int) -> list[dict[str, Any]]:
        """Return the fields of ``HeldWeight`` for each factor of a version of which this worker holds a part."""
        assert self._rlhf_slots is not None
        return self._rlhf_slots.served(number)

    def rlhf_expert_layers(self) -> dict[str, Any]:
        """Return the numbers of the ``layers`` with experts, rising, and how many ``experts`` a layer has."""
        from vllm.model_executor.layers.fused_moe.runner.moe_runner import MoERunner

        runners = [
            module
            for module in self.weight_transfer_engine.model.modules()
            if isinstance(module, MoERunner)
        ]
        experts = self.model_runner.model_config.get_num_experts()
        return {"layers": sorted({runner.layer_id for runner in runners}), "experts": experts}

    def rlhf_measure_masses(self, never_sampled: list[int]) -> None:
        """Measure what grammars allow from now on.

        Args:
            never_sampled: tokens without probability.
        """
        if self._rlhf_masses is None:
            self._rlhf_masses = MaskedMasses(never_sampled)
            measure_masks(self.model_runner, self._rlhf_masses)

    def rlhf_take_masses(self, name: str, count: int, alive: list[str]) -> list[float] | None:
        """Return the masses of an answer's tokens, and forget them and those of answers that are not alive."""
        return None if self._rlhf_masses is None else self._rlhf_masses.take(name, count, alive)
