"""Names and words that the engine and vLLM's processes share."""

LOAD_FORMAT = "rlhf_plain"
"""vLLM's name for ``worker.loader.PlainWeightsLoader``."""
TRANSFER_BACKEND = "rlhf"
"""vLLM's name for ``worker.receiver.WeightReceiver``."""
WORKER_EXTENSION = "rlhf_plugin_vllm.worker.extension.WorkerExtension"
"""Class that vLLM mixes into its worker."""
OWNER_VARIABLE = "RLHF_VLLM_OWNER"
"""Environment variable with the pid of the engine's process."""
PORTION_VARIABLE = "RLHF_VLLM_PORTION"
"""Environment variable with the number of a request's tokens that vLLM's core sends in one message."""
MERGED_INSTEAD = (
    "have the adapter merged into the weights that the engine gets (--actor.lora.serve merged; --model.serve merged of "
    "rlhf generate and chat)"
)
"""The user's way to an engine that cannot serve an adapter beside the base's weights."""
