"""Keys of the YAML file that TRL's script for GRPO reads: TRL 1.16.0 with the arguments of Transformers 5's Trainer.

One file has the arguments of the script, of ``GRPOConfig`` and of ``ModelConfig``. ``To`` is a counterpart of the same
meaning; ``Rule`` lists the options that a function of ``grpo.py`` may set from the key and others.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..table.entries import Fate, Missing, Nothing, OptionEntry, Rule, To
from ..table.kinds import NUMBER, SWITCH, TEXT, WHOLE, Kind, Value, choice

_Line = tuple[str, Kind, Value, Fate]

_LOSSES = ("ppo", "gspo", "cispo", "sapo", "vespo", "luspo")
_CLIP = tuple(
    f"algo.loss.{loss}.{bound}"
    for loss in ("ppo", "gspo", "cispo", "luspo")
    for bound in ("clip_low", "clip_high")
)
_CORRECTION = Rule(
    "algo.correction.kind",
    *(
        f"algo.correction.{kind}.{bound}"
        for kind in ("tis", "icepop", "mis", "importance")
        for bound in ("low", "high")
    ),
    *(f"algo.correction.importance.{name}" for name in ("level", "mode", "weight")),
)
_SIZES = Rule("train.batch_size", "rollout.batch_size", "train.max_tokens_per_micro_batch")
_EVAL = Rule(
    "eval.data", "eval.split", "eval.every", "eval.n_samples", "eval.temperatures", "eval.at_start"
)

NO_ADAPTER = "no adapter plugin is installed (actor.adapter), so all weights are trained"
_ADAPTER = Missing(NO_ADAPTER)
_ADAPTER_DETAIL = Nothing("it concerns the adapter; see use_peft")
_QUANTIZED = Missing(
    "no adapter plugin is installed, and quantized weights cannot be trained without one"
)
_STRUCTURED = Missing("answers cannot be constrained while they are sampled")
_KWARGS = Missing("further arguments of models, templates and samplers are no options", off=(None,))
_HUB = Missing("nothing is uploaded; the folder model/ of the run can be")
_SERVER = Nothing("engines are part of the run; no server is asked")
_REFERENCE = Missing("the reference stays the model that ref.path names, or the initial policy")
_REFERENCE_DETAIL = Nothing("it concerns sync_ref_model")
_RECORDS = Nothing("metrics and samples of every step are in the run folder: rlhf show")
_COMPUTED = Nothing(
    "packed sequences have no padding, and the backend chooses how they are computed"
)
_TRAINER = Nothing("a matter of the Trainer of Transformers, without effect on results here")

# fmt: off
_GRPO: tuple[_Line, ...] = (
    ("learning_rate", NUMBER, 1e-6, Rule("actor.adam.lr", "actor.adam8bit.lr", "actor.sgd.lr")),
    ("num_generations", WHOLE, 8, To("rollout.n_samples_per_prompt")),
    ("max_completion_length", WHOLE, 512, To("rollout.max_new_tokens")),
    ("shuffle_dataset", SWITCH, True, To("data.shuffle")),
    ("generation_batch_size", WHOLE, None, _SIZES),
    ("steps_per_generation", WHOLE, None, _SIZES),
    ("num_iterations", WHOLE, 1, To("train.inner_epochs")),
    ("temperature", NUMBER, 1.0, To("rollout.temperature")),
    ("top_p", NUMBER, 1.0, To("rollout.top_p")),
    ("top_k", WHOLE, 0, To("rollout.top_k", convert=lambda value: value or 0)),
    ("min_p", NUMBER, None, To("rollout.min_p")),
    ("repetition_penalty", NUMBER, 1.0,
     Missing("a penalty would make the sampler's log-probs differ from the model's", off=(1.0,))),
    ("beta", NUMBER, 0.0, Rule("algo.kl.coef", "algo.kl.mode", "algo.kl.estimator")),
    ("use_bias_correction_kl", SWITCH, True, Rule("algo.kl.unbiased_gradient")),
    ("epsilon", NUMBER, 0.2, Rule(*_CLIP)),
    ("epsilon_high", NUMBER, None, Rule(*_CLIP)),
    ("delta", NUMBER, None, Rule("algo.loss.ppo.dual_clip")),
    ("importance_sampling_level", choice("token", "sequence"), "token", Rule("algo.loss.policy")),
    ("loss_type", choice("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "vespo", "luspo"), "dapo",
     Rule("algo.loss.policy", "algo.loss.aggregation")),
    ("scale_rewards", TEXT, "group", Rule("algo.advantage.estimator")),
    ("multi_objective_aggregation", choice("sum_then_normalize", "normalize_then_sum"), "sum_then_normalize",
     Rule("algo.advantage.estimator")),
    ("sapo_temperature_pos", NUMBER, 1.0, Rule("algo.loss.sapo.tau_pos")),
    ("sapo_temperature_neg", NUMBER, 1.05, Rule("algo.loss.sapo.tau_neg")),
    ("vespo_k_pos", NUMBER, 2.0, Rule("algo.loss.vespo.k_pos")),
    ("vespo_lambda_pos", NUMBER, 3.0, Rule("algo.loss.vespo.lambda_pos")),
    ("vespo_k_neg", NUMBER, 3.0, Rule("algo.loss.vespo.k_neg")),
    ("vespo_lambda_neg", NUMBER, 2.0, Rule("algo.loss.vespo.lambda_neg")),
    ("entropy_coef", NUMBER, 0.0, To("algo.loss.entropy_coef")),
    ("use_adaptive_entropy", SWITCH, False, Rule("algo.loss.entropy_target")),
    ("entropy_target", NUMBER, 0.2, Rule("algo.loss.entropy_target")),
    ("entropy_coef_delta", NUMBER, 0.005, Rule("algo.loss.entropy_step")),
    ("entropy_coef_min", NUMBER, 0.0, Missing("the adapted bonus goes down to 0", off=(0.0,))),
    ("entropy_coef_max", NUMBER, 1.0, Missing("the adapted bonus goes up to 1", off=(1.0,))),
    ("mask_truncated_completions", SWITCH, False,
     Missing("truncated samples are trained on; the shaper stop_properly scales or replaces their reward")),
    ("top_entropy_quantile", NUMBER, 1.0, Missing("all action tokens are trained on", off=(1.0,))),
    ("off_policy_mask_threshold", NUMBER, None,
     Missing("a correction masks by the difference to the sampler: algo.correction.kind", off=(None,))),
    ("vllm_importance_sampling_correction", SWITCH, True, _CORRECTION),
    ("vllm_importance_sampling_mode",
     choice("token_truncate", "token_mask", "sequence_truncate", "sequence_mask"), "sequence_mask", _CORRECTION),
    ("vllm_importance_sampling_clip_max", NUMBER, 3.0, _CORRECTION),
    ("vllm_importance_sampling_clip_min", NUMBER, None, _CORRECTION),
    ("vllm_importance_sampling_cap", NUMBER, None, _CORRECTION),
    ("use_vllm", SWITCH, False, Rule("engine.name")),
    ("vllm_mode", choice("colocate", "server"), "colocate", Rule("runtime.ray.colocate", "runtime.ray.engines")),
    ("vllm_gpu_memory_utilization", NUMBER, 0.3, Rule("engine.vllm.memory_share")),
    ("vllm_tensor_parallel_size", WHOLE, 1,
     Rule("engine.vllm.args.tensor_parallel_size", "runtime.ray.gpus_per.engine")),
    ("vllm_max_model_length", WHOLE, None, Rule("rollout.max_length", "data.max_prompt_tokens")),
    ("vllm_enable_sleep_mode", SWITCH, False, Missing("nothing sleeps: trainer and engine keep their memory")),
    ("vllm_model_impl", TEXT, "vllm", Missing("set it with engine.vllm.args.model_impl", off=("vllm",))),
    ("sync_ref_model", SWITCH, False, _REFERENCE),
    ("reward_weights", TEXT, None, Rule()),
    ("router_aux_loss_coef", NUMBER, None,
     Missing("there is no balancing loss for mixtures of experts", off=(0.0, None))),
    ("trust_remote_code", SWITCH, False, To("model.trust_remote_code")),
    ("cast_lm_head_to_fp32", SWITCH, False, Nothing("log-probs are computed from float32 logits")),
    ("max_tool_calling_iterations", WHOLE, None, Missing("tools are an environment here: --env", off=(None,))),
)

_SCRIPT: tuple[_Line, ...] = (
    ("model_name_or_path", TEXT, None, To("model.path")),
    ("dtype", TEXT, "float32", Rule("model.dtype")),
    ("dataset_name", TEXT, None, Rule("data.train")),
    ("dataset_config", TEXT, None, Rule("data.train")),
    ("datasets", TEXT, None, Rule("data.train")),
    ("dataset_train_split", TEXT, "train", To("data.split")),
    ("dataset_test_split", TEXT, "test", _EVAL),
    ("reward_funcs", TEXT, None, Rule("reward.use", "reward.shapers")),
    ("reward_model_name_or_path", TEXT, None, Rule("reward.use", "reward.reward_model.path")),
    ("model_revision", TEXT, "main", Missing("a revision cannot be named; give its folder", off=("main", None))),
    ("use_peft", SWITCH, False, _ADAPTER),
    ("load_in_8bit", SWITCH, False, _QUANTIZED),
    ("load_in_4bit", SWITCH, False, _QUANTIZED),
    ("streaming", SWITCH, False, Missing("sets are read before the run begins")),
    ("dataset_streaming", SWITCH, False, Missing("sets are read before the run begins")),
    ("test_split_size", NUMBER, None, Rule("eval.fraction")),
)

_TRAINER_KEYS: tuple[_Line, ...] = (
    ("output_dir", TEXT, None, To("output", if_given=True,
                                  differs="it is the run folder, with the model in model/")),
    ("per_device_train_batch_size", WHOLE, 8, _SIZES),
    ("gradient_accumulation_steps", WHOLE, 1, _SIZES),
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
    ("eval_strategy", TEXT, "no", _EVAL),
    ("eval_steps", NUMBER, None, _EVAL),
    ("logging_steps", NUMBER, 10.0, _RECORDS),
    ("eval_on_start", SWITCH, False, _EVAL),
    ("num_generations_eval", WHOLE, None, _EVAL),
    ("save_strategy", TEXT, "steps", Rule("checkpoint.every")),
    ("save_steps", NUMBER, 500.0, Rule("checkpoint.every")),
    ("save_total_limit", WHOLE, None, To("checkpoint.keep")),
    ("save_only_model", SWITCH, False, Missing("a checkpoint always has all state")),
    ("resume_from_checkpoint", TEXT, None, Missing("checkpoints of TRL cannot be read", off=(None, False, "False"))),
    ("report_to", TEXT, "none", Rule("log.tensorboard")),
    ("full_determinism", SWITCH, False,
     Missing("on a CPU runs repeat to the bit; kernels of a GPU are not forced to be deterministic")),
    ("deepspeed", TEXT, None, Missing("options of DeepSpeed are backend.deepspeed and its args", off=(None, ""))),
    ("fsdp", TEXT, None,
     Missing("there is no FSDP; the backend deepspeed shares weights at stage 3", off=(None, "", False))),
    ("push_to_hub", SWITCH, False, _HUB),
    ("neftune_noise_alpha", NUMBER, None, Missing("no noise is added to embeddings", off=(None,))),
    ("label_smoothing_factor", NUMBER, 0.0, Missing("the losses do not smooth labels", off=(0.0,))),
)
# fmt: on

_GROUPS: tuple[tuple[Fate, str], ...] = (
    (
        _ADAPTER_DETAIL,
        "lora_r lora_alpha lora_dropout lora_target_modules lora_target_parameters lora_modules_to_save "
        "lora_task_type use_rslora use_dora bnb_4bit_quant_type use_bnb_nested_quant bnb_4bit_quant_storage",
    ),
    (_STRUCTURED, "vllm_structured_outputs_regex"),
    (
        _KWARGS,
        "model_init_kwargs generation_kwargs chat_template_kwargs optim_args optim_target_modules",
    ),
    (
        _SERVER,
        "vllm_server_base_url vllm_server_host vllm_server_port vllm_server_timeout vllm_group_port",
    ),
    (_REFERENCE_DETAIL, "ref_model_mixup_alpha ref_model_sync_steps"),
    (
        _RECORDS,
        "log_completions log_multimodal num_completions_to_print log_unique_prompts logging_strategy "
        "logging_first_step log_on_each_node logging_nan_inf_filter include_num_input_tokens_seen log_level "
        "log_level_replica disable_tqdm run_name project trackio_space_id trackio_bucket_id "
        "trackio_static_space_id logging_dir",
    ),
    (
        _HUB,
        "log_completions_hub_repo hub_token hub_private_repo hub_model_id hub_strategy hub_always_push hub_revision",
    ),
    (
        _COMPUTED,
        "attn_implementation pad_to_multiple_of cache_implementation use_transformers_continuous_batching "
        "transformers_continuous_batching_config use_transformers_paged ds3_gather_for_generation "
        "disable_dropout torch_empty_cache_steps gradient_checkpointing_kwargs bf16_full_eval fp16_full_eval tf32 "
        "torch_compile_backend torch_compile_mode liger_kernel_config use_cache auto_find_batch_size",
    ),
    (
        _TRAINER,
        "remove_unused_columns average_tokens_across_devices eval_delay per_device_eval_batch_size "
        "prediction_loss_only eval_do_concat_batches eval_use_gather_object eval_accumulation_steps "
        "include_for_metrics batch_eval_metrics save_on_each_node enable_jit_checkpoint load_best_model_at_end "
        "metric_for_best_model greater_is_better ignore_data_skip restore_callback_states_from_checkpoint data_seed "
        "use_cpu accelerator_config parallelism_config dataloader_drop_last dataloader_num_workers "
        "dataloader_pin_memory dataloader_persistent_workers dataloader_prefetch_factor "
        "dataloader_multiprocessing_context dataloader_in_order label_names train_sampling_strategy "
        "length_column_name ddp_find_unused_parameters ddp_bucket_cap_mb ddp_broadcast_buffers ddp_static_graph "
        "ddp_backend ddp_timeout fsdp_config debug skip_memory_metrics do_train do_eval do_predict local_rank "
        "ignore_bias_buffers",
    ),
)
"""Keys with one fate, whatever their values; their defaults are not needed."""


def _entries() -> Iterator[OptionEntry]:
    for part in (_GRPO, _SCRIPT, _TRAINER_KEYS):
        for name, kind, default, fate in part:
            yield OptionEntry(name, kind, default, fate)
    for fate, names in _GROUPS:
        for name in names.split():
            yield OptionEntry(name, TEXT, None, fate)


KEYS = {entry.name: entry for entry in _entries()}
"""The table, by name."""
