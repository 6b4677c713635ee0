"""Reasons for which flags of OpenRLHF have no counterpart. One that gets a counterpart is changed in the table too."""

from __future__ import annotations

from ...table.entries import Missing, Nothing

QUANTIZED = Missing("a reward model is served with the weights as they are, not in 4 bits")
LIGER = Missing(
    "there are no Liger kernels; the logits, their main saving, are computed in chunks here "
    "(backend.deepspeed.logits_chunk)"
)
EXPERTS = Missing("the kernel of experts is Transformers' default")
SLOW_TOKENIZER = Missing("tokenizers are loaded as AutoTokenizer chooses")
MODELSCOPE = Missing(
    "names are those of the Hugging Face hub; download the files and give their folders"
)
DETERMINISM = Missing(
    "there is no switch: on a CPU runs repeat to the bit; kernels of a GPU are not forced to be deterministic"
)
OFFLOADED_REFERENCE = Missing(
    "offloading holds for every role: backend.deepspeed.offload_param (stage 3) also moves the policy's weights to "
    "host memory"
)
OFFLOADED_REWARD = Missing(
    'nothing is moved back and forth; reward.reward_model.device = "cpu" computes the reward model on the CPU'
)
DISK_LIMIT = Missing(
    "checkpoints are limited by their number, checkpoint.keep", off=(float("inf"), 1e8)
)
NO_STATE = Missing("a checkpoint always has all state, since a run has to resume to the bit")
PRETRAINING = Nothing("OpenRLHF reads it nowhere")

LAUNCHER = Nothing("the launcher's")
PACKING = Nothing("sequences are always packed")
ATTENTION = Nothing("packed attention is torch's own, chosen by the backend")
REENTRANT = Nothing("a variant of recomputation that changes no result")
UNIVERSAL = Nothing("checkpoints load on any number of ranks")
LOADER = Nothing("prompts are read before the run begins")
TRANSPORT = Nothing("runtime.ray.weights = auto takes CUDA IPC on one GPU and NCCL between GPUs")
TIMING = Nothing("each phase of each step is timed and logged")
FLASH = Nothing("attention is packed and fused anyhow")
ACCUMULATION = Nothing("gradients are summed in float32, over micro-batches and over ranks")
PLACEHOLDER = Nothing(
    "OpenRLHF accepts it and ignores it; DeepSpeed's Muon has 5 Newton-Schulz steps and Nesterov"
)
ON_DEVICE = Nothing("DeepSpeed decides where weights are loaded")
