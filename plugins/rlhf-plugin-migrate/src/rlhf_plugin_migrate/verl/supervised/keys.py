"""Keys of verl's trainers of given answers: ``sft_trainer`` of verl 0.9, and ``fsdp_sft_trainer`` before it."""

from __future__ import annotations

from ...table.entries import Missing, Nothing, Rule, To
from ...table.kinds import NUMBER, SWITCH, TEXT, WHOLE
from ..common import reasons
from ..common.adapter_keys import adapter_lines
from ..common.config_file import CONFIG
from ..common.key_table import Group, KeyTable, Line, key_table
from ..common.optimizer_keys import STATE, optimizer_lines
from ..common.trainer_keys import trainer_lines

_COLUMNS = Rule(
    "data.messages_key", "data.prompt_key", "data.response_key", "data.form", "data.chat"
)
_MICRO = Rule("train.max_tokens_per_micro_batch")
_WIDTH = Rule("backend.deepspeed.sequence_parallel")
_CHECKPOINTING = Rule(
    *(f"backend.{backend}.gradient_checkpointing" for backend in ("torch", "fsdp", "deepspeed"))
)
_GPUS = Rule("runtime.ray.ranks.policy")
_THINKING = Missing(
    "a column says it as chat_template_kwargs, an object with enable_thinking (docs/data.md)",
    off=(None, "enable_thinking", "none"),
)

# fmt: off
_LINES: tuple[Line, ...] = (
    ("data.train_files", TEXT, "~/data/gsm8k/train.parquet", Rule("data.train")),
    ("data.val_files", TEXT, None, Rule("eval.data")),
    ("data.train_max_samples", WHOLE, -1, Rule("data.max_samples")),
    ("data.val_max_samples", WHOLE, -1, Rule("eval.max_samples")),
    ("data.train_batch_size", WHOLE, 256, To("train.batch_size")),
    ("data.micro_batch_size_per_gpu", WHOLE, 4, _MICRO),
    ("data.micro_batch_size", WHOLE, None, _MICRO),
    ("data.max_token_len_per_gpu", WHOLE, 8192, _MICRO),
    ("data.use_dynamic_bsz", SWITCH, True, _MICRO),
    ("data.max_length", WHOLE, 1024, To("data.max_length")),
    ("data.truncation", TEXT, "error", Rule("data.on_too_long")),
    ("data.messages_key data.multiturn.messages_key", TEXT, "messages", _COLUMNS),
    ("data.tools_key data.multiturn.tools_key", TEXT, "tools", Nothing("the column tools is read where rows have one")),
    ("data.enable_thinking_key data.multiturn.enable_thinking_key", TEXT, "enable_thinking", _THINKING),
    ("data.enable_thinking_default", TEXT, None, _THINKING),
    ("data.seed", WHOLE, None, To("seed", if_given=True)),
    ("data.apply_chat_template_kwargs", TEXT, None, Rule("data.chat_template_kwargs")),
    ("model.hf_config_path", TEXT, None, reasons.MODEL_CONFIG),
    ("data.image_key", TEXT, None, Rule("data.image_key", "model.vision")),
    ("model.path model.partial_pretrain", TEXT, None, To("model.path")),
    ("model.tokenizer_path", TEXT, None, To("model.tokenizer")),
    ("model.trust_remote_code", SWITCH, False, To("model.trust_remote_code")),
    ("model.enable_gradient_checkpointing", SWITCH, True, _CHECKPOINTING),
    ("engine.model_dtype model.fsdp_config.model_dtype", TEXT, "fp32", Rule("model.dtype")),
    ("engine engine.strategy model.strategy model_engine", TEXT, "fsdp", Rule("backend.name")),
    ("engine.ulysses_sequence_parallel_size ulysses_sequence_parallel_size", WHOLE, 1, _WIDTH),
    ("trainer.nnodes", WHOLE, 1, _GPUS),
    ("trainer.n_gpus_per_node", WHOLE, 1, _GPUS),
    ("model", TEXT, None, Nothing("the model is model.path")),
    ("optim", TEXT, None, Nothing("keys of the optimizer are those of optim")),
)
_OLD: tuple[Line, ...] = (
    ("data.val_files", TEXT, "~/data/gsm8k/test.parquet", Rule("eval.data")),
    ("data.use_dynamic_bsz", SWITCH, False, _MICRO),
    ("data.multiturn.enable", SWITCH, False, _COLUMNS),
    ("data.prompt_key", TEXT, "question", _COLUMNS),
    ("data.response_key", TEXT, "answer", _COLUMNS),
    ("data.prompt_dict_keys", TEXT, None, _COLUMNS),
    ("data.response_dict_keys", TEXT, None, _COLUMNS),
    ("trainer.n_gpus_per_node", WHOLE, 8, _GPUS),
)
# fmt: on

_GROUPS: tuple[Group, ...] = (
    (
        reasons.FAST,
        "model.use_fused_kernels model.use_shm data.use_shm data.num_workers data.balance_dp_token "
        "trainer.balance_batch model.enable_activation_offload data.ignore_input_ids_mismatch",
    ),
    (
        reasons.PACKED,
        "model.use_remove_padding use_remove_padding data.pad_mode engine.use_remove_padding",
    ),
    (reasons.CLASS, "data.custom_cls.path data.custom_cls.name"),
    (reasons.TEMPLATE, "data.chat_template model.custom_chat_template"),
    (reasons.EXTERNAL, "model.external_lib"),
    (reasons.LIGER, "model.use_liger"),
    (reasons.PLACED, "trainer.device trainer.profile_interval"),
    (
        Nothing("held-out rows are never shuffled, and training rows always"),
        "data.shuffle data.validation_shuffle",
    ),
)


def _table(*lines: Line, **optimizer: float | str) -> KeyTable:
    return key_table(
        (
            *trainer_lines(epochs=4, project="gsm8k-sft", run="test", seed=1),
            *CONFIG,
            *_LINES,
            *optimizer_lines("optim", "actor", **optimizer),  # type: ignore[arg-type]
            ("optim.weight_decay", NUMBER, 0.01, Rule("actor.adam.weight_decay", "actor.adam8bit.weight_decay")),
            *adapter_lines("model", "actor"),
            *lines,
        ),
        _GROUPS,
        (
            ("data.apply_chat_template_kwargs.", lambda rest: To(f"data.chat_template_kwargs.{rest}")),
            ("checkpoint. trainer.checkpoint.", reasons.STORED),
            ("optim.", STATE),
            ("model.fsdp_config. engine.", reasons.SHARDED),
            ("engine.override_transformer_config. engine.impl_cfg. engine.backend_config.", reasons.MEGATRON),
            ("model.mtp.", reasons.MTP),
            ("model.lora.", reasons.ADAPTER_DETAIL),
            ("model.tiled_mlp.", reasons.TILED),
            ("model.override_config.", reasons.MODEL_CONFIG),
            ("model.fused_kernel_options.", reasons.FAST),
            ("profiler. global_profiler.", reasons.PROFILED),
            ("ray_kwargs.", Nothing("options of Ray's own start are those of the cluster: runtime.ray")),
        ),
    )  # fmt: skip


KEYS = _table(lr=1e-3)
"""Table of ``sft_trainer``."""
OLD_KEYS = _table(*_OLD, lr=1e-5, beta=0.95, warmup_share=0.1, schedule_name="cosine")
"""Table of ``fsdp_sft_trainer``."""
