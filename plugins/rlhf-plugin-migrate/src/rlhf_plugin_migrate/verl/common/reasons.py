"""Reasons for which keys of verl have no counterpart, or need none."""

from __future__ import annotations

from ...table.entries import Missing, Nothing

FAST = Nothing("a matter of speed or memory, without effect on what is learned")
PACKED = Nothing("sequences are always packed")
SCORED = Nothing("log-probs are computed in micro-batches of train.max_tokens_per_micro_batch, too")
STORED = Nothing("a checkpoint has all state, and the model is exported at the end")
PLACED = Nothing("the runtime places processes, and moves tokens and weights between them")
DETAIL = Nothing("a detail of what is not used")
SHARDED = Nothing("the backend decides how ranks share weights")
NOT_READ = Nothing("verl reads it only with other options")

MEGATRON = Missing(
    "there is no Megatron: ranks share weights by ZeRO (backend.deepspeed.zero_stage) or matrices by "
    "backend.deepspeed.tensor_parallel",
    off=(None, False, 1, 0, "null"),
)
OTHER_ENGINE = Missing(
    "there is no such training engine: the backends are torch, fsdp and deepspeed"
)
PROFILED = Missing(
    "no tool for profiles is started; metrics.jsonl has the time of each phase",
    off=(None, False, "null", []),
)
CLASS = Missing(
    "a class of verl's cannot be used: rows are made by a data source (data.source), chosen by a sampler of yours",
    off=(None,),
)
MODEL_CONFIG = Missing(
    "values of config.json are not overridden: change them in the model's folder",
    off=(None, 0, 0.0),
)
PRECISION = Missing(
    "weights are float32 or bfloat16: there is no training in 8 bits", off=(None, False)
)
AGENT = Missing(
    "a loop of verl's cannot be used: tools and turns are an environment here (docs/tools.md), or an agent of yours "
    "(docs/agents.md)",
    off=(None, "single_turn_agent"),
)
MTP = Missing("heads of further tokens are not trained", off=(None, False))
DISTILLED = Missing(
    "a teacher is algo.teacher here, with the loss term distill (docs/algorithms/distill.md)",
    off=(None, False),
)
EXTERNAL = Missing("no package is imported for its side effects: write a plugin", off=(None,))
LIGER = Missing("there are no Liger kernels; logits are computed in chunks here", off=(None, False))
ADAPTER_DETAIL = Missing(
    "a detail of Megatron's adapters: A is drawn as in PEFT, B begins at 0, and images have no adapter of their own",
    off=(None, False, True, "zero"),
)
TILED = Missing("MLPs are not computed in tiles", off=(None, False))
TEMPLATE = Missing("the chat template is the tokenizer's: change it in its folder", off=(None,))
SPLIT_CRITIC = Missing("the critic's updates are those of the policy: the same minibatches")
NO_STEP = Missing("it ends nothing here: train.steps or train.epochs do", off=(None, -1, 0))
