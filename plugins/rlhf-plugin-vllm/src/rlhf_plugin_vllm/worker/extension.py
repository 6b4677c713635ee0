"""The extension of vLLM's workers: registers the loader and the receiver of weights, and adds calls that vLLM lacks.

vLLM imports this module in each worker before it makes the model, because the engine arguments name it as the worker's
extension. The import also starts the thread that ends the worker with its owner.
"""

from __future__ import annotations

from typing import Any

from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.model_loader import register_model_loader

from ..names import LOAD_FORMAT, TRANSFER_BACKEND
from .loader import PlainWeightsLoader
from .receiver import WeightReceiver
from .watchdog import end_with_owner

end_with_owner()
register_model_loader(LOAD_FORMAT)(PlainWeightsLoader)
WeightTransferEngineFactory.register_engine(TRANSFER_BACKEND, WeightReceiver)


class WorkerExtension:
    """Mix-in for vLLM's worker class. The engine calls the methods by ``collective_rpc``; they return plain values."""

    weight_transfer_engine: WeightReceiver

    def rlhf_place(self) -> list[str | None]:
        """Return machine and device of this worker, the fields of ``Place``."""
        place = self.weight_transfer_engine.place()
        return [place.machine, place.device]

    def rlhf_missing(self) -> list[str]:
        """Return the names of the parameters that received nothing in the last update."""
        return self.weight_transfer_engine.missing()

    def rlhf_served(self) -> list[dict[str, Any]]:
        """Return the fields of ``HeldWeight`` for each served weight of which this worker holds a part."""
        return self.weight_transfer_engine.served()
