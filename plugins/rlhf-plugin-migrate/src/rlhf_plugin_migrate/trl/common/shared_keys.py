"""Keys of the YAML files that TRL's scripts share: TRL 1.16.0 with the arguments of Transformers 5's Trainer.

One file has the arguments of the script, of its configuration, such as ``GRPOConfig``, and of ``ModelConfig``. ``To``
is a counterpart of the same meaning; ``Rule`` lists the options that a function may set from the key and others.
"""

from __future__ import annotations

from collections.abc import Iterable

from ...table.entries import BALANCING, Fate, Missing, Nothing, OptionEntry, Rule, To
from ...table.kinds import NUMBER, SWITCH, TEXT, WHOLE, Kind, Value

Line = tuple[str, Kind, Value, Fate]
Group = tuple[Fate, str]
"""A fate and the keys that have it whatever their values, so that their defaults are not needed."""

_ADAPTERS = ("lora", "dora", "qlora")


def _of_adapters(option: str) -> Rule:
    return Rule(*(f"actor.{name}.{option}" for name in _ADAPTERS))


KWARGS = Missing("further arguments of models and samplers are no options", off=(None,))
TEMPLATE_KWARGS = Missing(
    "variables of the chat template are a table here: write them as [data.chat_template_kwargs]",
    off=(None,),
)
REFERENCE = Missing("the reference is the model at the start, all along")
REFERENCE_DETAIL = Nothing("it concerns sync_ref_model")
_STREAMING = Missing(
    'sets are read before the run begins; data.source = "hub_stream" reads one row by row'
)
_HUB = Missing("nothing is uploaded; the folder model/ of the run can be")
RECORDS = Nothing("metrics of every step are in the run folder: rlhf show")
COMPUTED = Nothing(
    "packed sequences have no padding, and the backend chooses how they are computed"
)
_TRAINER = Nothing("a matter of the Trainer of Transformers, without effect on results here")
_STORED = Nothing("a matter of where sharded weights in 4 bits are stored")

# fmt: off
_LINES: tuple[Line, ...] = (
    ("model_name_or_path", TEXT, None, To("model.path")),
    ("dtype", TEXT, "float32", Rule("model.dtype")),
    ("dataset_name", TEXT, None, Rule("data.train")),
    ("dataset_config", TEXT, None, Rule("data.train")),
    ("datasets", TEXT, None, Rule("data.train")),
    ("dataset_train_split", TEXT, "train", To("data.split")),
    ("model_revision", TEXT, "main", Missing("a revision cannot be named; give its folder", off=("main", None))),
    ("streaming", SWITCH, False, _STREAMING),
    ("dataset_streaming", SWITCH, False, _STREAMING),
    ("trust_remote_code", SWITCH, False, To("model.trust_remote_code")),
    ("router_aux_loss_coef", NUMBER, None, BALANCING),
    ("output_dir", TEXT, None, To("output", if_given=True,
                                  differs="it is the run folder, with the model in model/")),
    ("num_train_epochs", NUMBER, 3.0, Rule("train.epochs")),
    ("max_steps", WHOLE, -1, Rule("train.steps")),
    ("lr_scheduler_type", TEXT, "linear", Rule("actor.lr_schedule")),
    ("lr_scheduler_kwargs", TEXT, None, Rule("actor.min_lr_ratio")),
    ("warmup_steps", NUMBER, 0.0, Rule("actor.warmup_ratio")),
    ("warmup_ratio", NUMBER, None, Rule("actor.warmup_ratio")),
    ("optim", TEXT, "adamw_torch_fused", Rule("actor.optim", "actor.adam8bit.paged")),
    ("weight_decay", NUMBER, 0.0, Rule(*(f"actor.{name}.weight_decay" for name in ("adam", "adam8bit", "sgd")))),
    ("adam_beta1", NUMBER, 0.9, Rule("actor.adam.betas", "actor.adam8bit.betas")),
    ("adam_beta2", NUMBER, 0.999, Rule("actor.adam.betas", "actor.adam8bit.betas")),
    ("adam_epsilon", NUMBER, 1e-8, Rule("actor.adam.eps", "actor.adam8bit.eps")),
    ("max_grad_norm", NUMBER, 1.0, To("actor.max_norm", convert=lambda value: value or "none")),
    ("seed", WHOLE, 42, To("seed")),
    ("gradient_checkpointing", SWITCH, True,
     Rule("backend.torch.gradient_checkpointing", "backend.deepspeed.gradient_checkpointing")),
    ("torch_compile", SWITCH, False, Rule("backend.torch.compile", "backend.deepspeed.compile")),
    ("bf16", SWITCH, True, Nothing("matmuls are in bfloat16 where the hardware is fast at it (compute_dtype)")),
    ("fp16", SWITCH, False, Missing("there is no float16; matmuls are in bfloat16")),
    ("use_liger_kernel", SWITCH, False, Missing("there are no Liger kernels; logits are computed in chunks")),
    ("logging_steps", NUMBER, 10.0, RECORDS),
    ("save_strategy", TEXT, "steps", Rule("checkpoint.every")),
    ("save_steps", NUMBER, 500.0, Rule("checkpoint.every")),
    ("save_total_limit", WHOLE, None, To("checkpoint.keep")),
    ("save_only_model", SWITCH, False, Missing("a checkpoint always has all state")),
    ("resume_from_checkpoint", TEXT, None, Missing("checkpoints of TRL cannot be read", off=(None, False, "False"))),
    ("full_determinism", SWITCH, False,
     Missing("on a CPU runs repeat to the bit; kernels of a GPU are not forced to be deterministic")),
    ("deepspeed", TEXT, None, Missing("options of DeepSpeed are backend.deepspeed and its args", off=(None, ""))),
    ("fsdp", TEXT, None,
     Missing('choose backend.name = "fsdp"; its options are backend.fsdp', off=(None, "", False))),
    ("push_to_hub", SWITCH, False, _HUB),
    ("neftune_noise_alpha", NUMBER, None, Missing("no noise is added to embeddings", off=(None,))),
    ("label_smoothing_factor", NUMBER, 0.0, Nothing("TRL's trainer does not read it")),
    ("use_peft", SWITCH, False, Rule("actor.adapter")),
    ("use_dora", SWITCH, False, Rule("actor.adapter")),
    ("load_in_4bit", SWITCH, False, Rule("actor.adapter", "backend.deepspeed.zero_stage")),
    ("load_in_8bit", SWITCH, False, Missing("weights are quantized to 4 bits or not at all (qlora)")),
    ("lora_r", WHOLE, 16, _of_adapters("rank")),
    ("lora_alpha", WHOLE, 32, _of_adapters("alpha")),
    ("lora_dropout", NUMBER, 0.05, _of_adapters("dropout")),
    ("lora_target_modules", TEXT, None, _of_adapters("target")),
    ("lora_modules_to_save", TEXT, None, _of_adapters("modules_to_save")),
    ("use_rslora", SWITCH, False, _of_adapters("use_rslora")),
    ("lora_target_parameters", TEXT, None, Rule(
        *(f"actor.{name}.target_parameters" for name in ("lora", "qlora")), "actor.lora.serve")),
    ("lora_task_type", TEXT, "CAUSAL_LM", Nothing("the command says what is trained")),
    ("bnb_4bit_quant_type", TEXT, "nf4", Missing("4 bits are NormalFloat (nf4)", off=("nf4",))),
    ("use_bnb_nested_quant", SWITCH, False, Rule("actor.qlora.double_quantization")),
    ("bnb_4bit_quant_storage", TEXT, None, _STORED),
    ("report_to", TEXT, "none", Rule("log.tensorboard", "log.to")),
)
# fmt: on

_GROUPS: tuple[Group, ...] = (
    (KWARGS, "model_init_kwargs optim_args optim_target_modules"),
    (
        RECORDS,
        "logging_strategy logging_first_step log_on_each_node logging_nan_inf_filter "
        "include_num_input_tokens_seen log_level log_level_replica disable_tqdm run_name project "
        "trackio_space_id trackio_bucket_id trackio_static_space_id logging_dir",
    ),
    (
        _HUB,
        "hub_token hub_private_repo hub_model_id hub_strategy hub_always_push hub_revision",
    ),
    (
        COMPUTED,
        "attn_implementation torch_empty_cache_steps gradient_checkpointing_kwargs bf16_full_eval "
        "fp16_full_eval tf32 torch_compile_backend torch_compile_mode liger_kernel_config use_cache "
        "auto_find_batch_size",
    ),
    (
        _TRAINER,
        "remove_unused_columns average_tokens_across_devices eval_delay per_device_eval_batch_size "
        "prediction_loss_only eval_do_concat_batches eval_use_gather_object eval_accumulation_steps "
        "include_for_metrics batch_eval_metrics save_on_each_node enable_jit_checkpoint "
        "load_best_model_at_end metric_for_best_model greater_is_better ignore_data_skip "
        "restore_callback_states_from_checkpoint data_seed use_cpu accelerator_config parallelism_config "
        "dataloader_drop_last dataloader_num_workers dataloader_pin_memory dataloader_persistent_workers "
        "dataloader_prefetch_factor dataloader_multiprocessing_context dataloader_in_order label_names "
        "train_sampling_strategy length_column_name ddp_find_unused_parameters ddp_bucket_cap_mb "
        "ddp_broadcast_buffers ddp_static_graph ddp_backend ddp_timeout fsdp_config debug skip_memory_metrics "
        "do_train do_eval do_predict local_rank ignore_bias_buffers",
    ),
)


def table(lines: Iterable[Line], groups: Iterable[Group] = ()) -> dict[str, OptionEntry]:
    """Return the table of a script by name: the keys of all scripts, and its own, which count where both have one."""
    found: dict[str, OptionEntry] = {}
    for part, keys in ((_LINES, _GROUPS), (lines, groups)):
        for fate, names in keys:
            found |= {name: OptionEntry(name, TEXT, None, fate) for name in names.split()}
        for name, kind, default, fate in part:
            found[name] = OptionEntry(name, kind, default, fate)
    return found
