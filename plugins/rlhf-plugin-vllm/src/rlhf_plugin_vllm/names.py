"""Names by which the engine and vLLM's workers know the same things."""

LOAD_FORMAT = "rlhf_plain"
TRANSFER_BACKEND = "rlhf"
WORKER_EXTENSION = "rlhf_plugin_vllm.worker.extension.WorkerExtension"
OWNER_VARIABLE = "RLHF_VLLM_OWNER"
"""Environment variable: id of the process that the engine lives in."""
PORTION_VARIABLE = "RLHF_VLLM_PORTION"
"""Environment variable: how many tokens of a request leave vLLM's core at once."""
