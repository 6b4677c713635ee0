"""Keys of the YAML file that TRL's script for GRPO reads, beside those that all scripts share."""

from __future__ import annotations

from ..table.entries import Missing, Nothing, Rule, To
from ..table.kinds import NUMBER, SWITCH, TEXT, WHOLE, choice
from .common.shared_keys import (
    COMPUTED,
    KWARGS,
    RECORDS,
    REFERENCE,
    REFERENCE_DETAIL,
    TEMPLATE_KWARGS,
    Group,
    Line,
    table,
)

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

_STRUCTURED = Missing("answers cannot be constrained while they are sampled")
_SERVER = Nothing("engines are part of the run; no server is asked")

# fmt: off
_LINES: tuple[Line, ...] = (
    ("learning_rate", NUMBER, 1e-6, Rule("actor.adam.lr", "actor.adam8bit.lr", "actor.sgd.lr")),
    ("shuffle_dataset", SWITCH, True, To("data.shuffle")),
    ("num_generations", WHOLE, 8, To("rollout.n_samples_per_prompt")),
    ("max_completion_length", WHOLE, 512, To("rollout.max_new_tokens")),
    ("max_prompt_length", WHOLE, None, Rule("data.max_prompt_tokens")),  # of earlier releases
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
    ("vllm_enable_sleep_mode", SWITCH, False, Rule("runtime.sleep")),
    ("vllm_model_impl", TEXT, "vllm", Missing("set it with engine.vllm.args.model_impl", off=("vllm",))),
    ("sync_ref_model", SWITCH, False, REFERENCE),
    ("reward_weights", TEXT, None, Rule()),
    ("cast_lm_head_to_fp32", SWITCH, False, Nothing("log-probs are computed from float32 logits")),
    ("max_tool_calling_iterations", WHOLE, None, Missing("tools are an environment here: --env", off=(None,))),
    ("reward_funcs", TEXT, None, Rule("reward.use", "reward.shapers")),
    ("reward_model_name_or_path", TEXT, None, Rule("reward.use", "reward.reward_model.path")),
    ("test_split_size", NUMBER, None, Rule("eval.fraction")),
    ("dataset_test_split", TEXT, "test", _EVAL),
    ("per_device_train_batch_size", WHOLE, 8, _SIZES),
    ("gradient_accumulation_steps", WHOLE, 1, _SIZES),
    ("eval_strategy", TEXT, "no", _EVAL),
    ("eval_steps", NUMBER, None, _EVAL),
    ("eval_on_start", SWITCH, False, _EVAL),
    ("num_generations_eval", WHOLE, None, _EVAL),
)
# fmt: on

_GROUPS: tuple[Group, ...] = (
    (_STRUCTURED, "vllm_structured_outputs_regex"),
    (KWARGS, "generation_kwargs"),
    (TEMPLATE_KWARGS, "chat_template_kwargs"),
    (
        _SERVER,
        "vllm_server_base_url vllm_server_host vllm_server_port vllm_server_timeout vllm_group_port",
    ),
    (REFERENCE_DETAIL, "ref_model_mixup_alpha ref_model_sync_steps"),
    (
        RECORDS,
        "log_completions log_multimodal num_completions_to_print log_unique_prompts log_completions_hub_repo",
    ),
    (
        COMPUTED,
        "pad_to_multiple_of cache_implementation use_transformers_continuous_batching "
        "transformers_continuous_batching_config use_transformers_paged ds3_gather_for_generation "
        "disable_dropout",
    ),
)

KEYS = table(_LINES, _GROUPS)
"""The table, by name."""
