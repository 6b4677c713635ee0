"""Teaches a vLLM worker how weights are loaded and received, and when to end; adds the calls that vLLM lacks.

vLLM imports this module in each worker before it makes the model, because it is named as the worker's extension.
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
    """Mixed into vLLM's worker class; its methods are called by ``collective_rpc``."""

    weight_transfer_engine: Any

    def rlhf_place(self) -> list[str | None]:
        """Machine and device of this worker, as ``Place`` has them."""
        place = self.weight_transfer_engine.place()
        return [place.machine, place.device]

    def rlhf_missing(self) -> list[str]:
        """Parameters that the last update left as they were."""
        missing: list[str] = self.weight_transfer_engine.missing()
        return missing

    def rlhf_served(self) -> list[dict[str, Any]]:
        """What this worker holds of each weight that is served, and its digest."""
        served: list[dict[str, Any]] = self.weight_transfer_engine.served()
        return served
