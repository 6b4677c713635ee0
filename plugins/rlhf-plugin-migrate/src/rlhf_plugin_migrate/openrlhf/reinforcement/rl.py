"""Flags of ``train_ppo_ray`` in OpenRLHF 0.11.2, with the flat names of 0.10.1 and flags that were removed since.

``common/flags.py`` says what a line has, and has the lines that other programs share.
"""

from __future__ import annotations

from ...table.entries import BALANCING, Rule, To
from ...table.kinds import (
    NUMBER,
    NUMBERS,
    PAIR,
    SHARES,
    SWITCH,
    TEXT,
    WHOLE,
    choice,
)
from ..common import reasons as why
from ..common.flags import DEEPSPEED, FILES, LIGER, Line, adapted, logged, table, trained

_RANKS, _ENGINES, _COLOCATE = "runtime.ray.ranks.", "runtime.ray.engines", "runtime.ray.colocate"
_SLEEP = "runtime.sleep"
_ENGINE_GPUS, _ENGINE_TP = "runtime.ray.gpus_per.engine", "engine.vllm.args.tensor_parallel_size"
_MICRO_BATCH = "train.max_tokens_per_micro_batch"
_LENGTHS = (
    "rollout.max_length",
    "rollout.max_new_tokens",
    "data.max_prompt_tokens",
    "data.on_bad_row",
    _MICRO_BATCH,
)
_CORRECTIONS = ("tis", "icepop", "seq_mask_tis", "flash_mask", "importance")
_CORRECTION = Rule(
    "algo.correction.kind", "algo.loss.old_logprobs",
    *(f"algo.correction.{kind}.high" for kind in _CORRECTIONS),
    *(f"algo.correction.{kind}.low" for kind in _CORRECTIONS if kind != "flash_mask"),
    *(f"algo.correction.importance.{name}" for name in ("level", "mode", "gate")),
)  # fmt: skip
_EVAL = Rule(
    "eval.data", "eval.every", "eval.split", "eval.temperatures", "eval.n_samples", "eval.at_start"
)
_REWARD = Rule(
    "reward.use", "reward.http.urls", "reward.http.choose", "reward.http.batch_size", "reward.http.label_key",
    "reward.http.request_timeout_s", "reward.http.max_tries", "reward.http.deadline_s", "reward.http.timeout_s",
)  # fmt: skip
_CLIP = tuple(
    f"algo.loss.{loss}.{bound}" for loss in ("ppo", "gspo") for bound in ("clip_low", "clip_high")
)
_WHITEN = tuple(
    f"algo.advantage.{name}.whiten" for name in ("gae", "reinforce", "reinforce_baseline")
)
_ESTIMATOR = choice(
    "gae", "reinforce", "rloo", "reinforce_baseline", "group_norm", "dr_grpo", "flash_reinforce"
)


# fmt: off
_ACTOR: tuple[Line, ...] = (
    ("actor.num_nodes", WHOLE, 1, Rule(_RANKS + "policy"), "actor_num_nodes"),
    ("actor.num_gpus_per_node", WHOLE, 8, Rule(_RANKS + "policy"), "actor_num_gpus_per_node"),
    ("actor.gradient_checkpointing_enable", SWITCH, False, To("backend.deepspeed.gradient_checkpointing"),
     "gradient_checkpointing"),
    ("actor.gradient_checkpointing_reentrant", SWITCH, False, why.REENTRANT, "gradient_checkpointing_use_reentrant"),
    ("actor.eps_clip", NUMBER, 0.2, Rule(*_CLIP), "eps_clip"),
    ("actor.eps_clip_low_high", PAIR, None, Rule(*_CLIP), "eps_clip_low_high"),
    ("actor.dual_clip", NUMBER, None, Rule("algo.loss.ppo.dual_clip"), "dual_clip"),
    ("actor.policy_loss_type", choice("ppo", "gspo"), "ppo", Rule("algo.loss.policy"), "policy_loss_type"),
    ("actor.loss_agg_mode", choice("token-mean", "seq-mean-token-mean"), "token-mean",
     Rule("algo.loss.aggregation")),
    ("actor.aux_loss_coef", NUMBER, 0.0, BALANCING, "aux_loss_coef"),
    ("actor.entropy_coef", NUMBER, None, Rule("algo.loss.entropy_coef"), "entropy_loss_coef"),
    ("actor.model_name_or_path", TEXT, None, To("model.path"), "pretrain"),
    ("actor.freeze_visual_encoder", SWITCH, False, Rule("actor.freeze_visual_encoder"), "freeze_visual_encoder"),
)

_CRITIC: tuple[Line, ...] = (
    ("critic.num_nodes", WHOLE, 1, Rule(_RANKS + "critic"), "critic_num_nodes"),
    ("critic.num_gpus_per_node", WHOLE, 8, Rule(_RANKS + "critic"), "critic_num_gpus_per_node"),
    ("critic.value_clip", NUMBER, 0.5, Rule("critic.value_clip"), "value_clip"),
    ("critic.freezing_steps", WHOLE, -1, Rule("critic.warmup_steps"), "freezing_actor_steps"),
    ("critic.save_value_network", SWITCH, False, Rule(), "save_value_network"),
    ("critic.model_name_or_path", TEXT, None, Rule("critic.path"), "critic_pretrain"),
)

_OTHER_ROLES: tuple[Line, ...] = (
    ("ref.num_nodes", WHOLE, 1, Rule(_RANKS + "reference"), "ref_num_nodes"),
    ("ref.num_gpus_per_node", WHOLE, 8, Rule(_RANKS + "reference"), "ref_num_gpus_per_node"),
    ("ref.offload", SWITCH, False, why.OFFLOADED_REFERENCE, "ref_reward_offload"),
    ("reward.num_nodes", WHOLE, 1, Rule(), "reward_num_nodes"),
    ("reward.num_gpus_per_node", WHOLE, 8, Rule(), "reward_num_gpus_per_node"),
    ("reward.normalize_enable", SWITCH, False, Rule("reward.reward_model.normalize"), "normalize_reward"),
    ("reward.clip_range", PAIR, [-10.0, 10.0], Rule("reward.shapers", "reward.clip.low", "reward.clip.high"),
     "reward_clip_range"),
    ("reward.overlong_buffer_len", NUMBER, None,
     Rule("reward.shapers", "reward.overlong.buffer", "reward.overlong.max_tokens"), "overlong_buffer_len"),
    ("reward.overlong_penalty_factor", NUMBER, 1.0, Rule("reward.overlong.factor"), "overlong_penalty_factor"),
    ("reward.stop_properly_penalty_coef", NUMBER, None, Rule("reward.shapers", "reward.stop_properly.coef"),
     "stop_properly_penalty_coef"),
    ("reward.model_name_or_path", TEXT, None,
     Rule("reward.use", "reward.reward_model.path"), "reward_pretrain"),
    ("reward.remote_url", TEXT, None, _REWARD, "remote_rm_url"),
    ("reward.offload", SWITCH, False, why.OFFLOADED_REWARD, "ref_reward_offload"),
)

_ROLLOUT: tuple[Line, ...] = (
    ("rollout.batch_size", WHOLE, 1024, To("rollout.batch_size"), "rollout_batch_size"),
    ("rollout.n_samples_per_prompt", WHOLE, 1, To("rollout.n_samples_per_prompt"), "n_samples_per_prompt"),
    ("rollout.temperature", NUMBER, 1.0, To("rollout.temperature"), "temperature"),
    ("rollout.top_p", NUMBER, 1.0, To("rollout.top_p"), "top_p"),
    ("rollout.max_new_tokens", WHOLE, None, Rule(*_LENGTHS), "max_new_tokens"),
    ("rollout.micro_batch_size", WHOLE, 1, Rule(), "micro_rollout_batch_size"),
    ("rollout.max_tokens_per_gpu", WHOLE, None, Rule(), "rollout_max_tokens_per_gpu"),
    ("rollout.vllm_generate_batch_size", WHOLE, None, Rule("rollout.oversampling"), "vllm_generate_batch_size"),
    ("vllm.num_engines", WHOLE, None, Rule(_ENGINES), "vllm_num_engines"),
    ("vllm.tensor_parallel_size", WHOLE, 1, Rule(_ENGINES, _ENGINE_GPUS, _ENGINE_TP), "vllm_tensor_parallel_size"),
    ("vllm.sync_backend", TEXT, "nccl", why.TRANSPORT, "vllm_sync_backend"),
    ("vllm.sync_with_ray", SWITCH, False, why.TRANSPORT, "vllm_sync_with_ray"),
    ("vllm.enable_prefix_caching", SWITCH, False, To("engine.vllm.prefix_caching", if_given=True),
     "enable_prefix_caching"),
    ("vllm.enforce_eager", SWITCH, False, To("engine.vllm.compile", convert=lambda value: not value, if_given=True),
     "enforce_eager"),
    ("vllm.enable_sleep", SWITCH, False, Rule(_SLEEP), "vllm_enable_sleep"),
    ("vllm.gpu_memory_utilization", NUMBER, 0.95, Rule("engine.vllm.memory_share"), "vllm_gpu_memory_utilization"),
)

_ALGO: tuple[Line, ...] = (
    ("algo.advantage.estimator", _ESTIMATOR, "gae", Rule("algo.advantage.estimator"), "advantage_estimator"),
    ("algo.advantage.gamma", NUMBER, 1.0, Rule("algo.advantage.gae.gamma", "algo.advantage.reinforce.gamma"),
     "gamma"),
    ("algo.advantage.lambd", NUMBER, 1.0, Rule("algo.advantage.gae.lambda_"), "lambd"),
    ("algo.advantage.no_std_norm", SWITCH, False, Rule(*_WHITEN), "no_advantage_std_norm"),
    ("algo.advantage.is_correction_level", choice("off", "token", "seq"), "off", _CORRECTION),
    ("algo.advantage.is_correction_mode", choice("mask", "clip"), "mask", _CORRECTION),
    ("algo.advantage.is_correction_gating", choice("ratio", "binary_kl", "tv"), "ratio", _CORRECTION),
    ("algo.advantage.is_correction_threshold", NUMBERS, [0.5, 5.0], _CORRECTION, "vllm_is_truncated_threshold"),
    ("algo.kl.init_coef", NUMBER, 0.01, Rule("algo.kl.coef"), "init_kl_coef"),
    ("algo.kl.use_loss", SWITCH, False, Rule("algo.kl.mode", "algo.kl.tail"), "use_kl_loss"),
    ("algo.kl.estimator", choice("k1", "k2", "k3"), "k1", Rule("algo.kl.estimator"), "kl_estimator"),
    ("algo.kl.unbiased_gradient", SWITCH, False, Rule("algo.kl.unbiased_gradient")),
    ("algo.kl.target", NUMBER, None, Rule("algo.kl.target"), "kl_target"),
    ("algo.kl.horizon", WHOLE, 10_000, Rule("algo.kl.horizon"), "kl_horizon"),
    ("algo.dynamic_filtering_enable", SWITCH, False,
     Rule("rollout.filters", "rollout.max_refills", "rollout.dynamic_sampling.reward"), "dynamic_filtering"),
    ("algo.dynamic_filtering_range", PAIR, [0.0, 1.0],
     Rule("rollout.dynamic_sampling.low", "rollout.dynamic_sampling.high"), "dynamic_filtering_reward_range"),
)

_TRAIN: tuple[Line, ...] = (
    ("train.colocate_actor_ref", SWITCH, False, Rule(_COLOCATE), "colocate_actor_ref"),
    ("train.colocate_critic_reward", SWITCH, False, Rule(), "colocate_critic_reward"),
    ("train.colocate_all", SWITCH, False, Rule(_COLOCATE), "colocate_all_models"),
    ("train.async_enable", SWITCH, False, Rule("rollout.max_staleness"), "async_train"),
    ("train.async_queue_size", WHOLE, 1, Rule("rollout.max_staleness"), "async_queue_size"),
    ("train.partial_rollout_enable", SWITCH, False, Rule("rollout.in_flight_updates"), "partial_rollout"),
    ("train.enable_ema", SWITCH, False, Rule("actor.ema"), "enable_ema"),
    ("train.ema_beta", NUMBER, 0.992, Rule("actor.ema"), "ema_beta"),
    ("train.dynamic_batch_enable", SWITCH, False, Rule(_MICRO_BATCH), "use_dynamic_batch"),
    ("train.max_tokens_per_gpu", WHOLE, 16_192, Rule(_MICRO_BATCH), "train_max_tokens_per_gpu"),
    ("train.micro_batch_size", WHOLE, 1, Rule(_MICRO_BATCH), "micro_train_batch_size"),
    ("train.batch_size", WHOLE, 128, Rule("train.batch_size"), "train_batch_size"),
    ("train.num_episodes", WHOLE, 1, To("train.epochs"), "num_episodes"),
    ("train.max_epochs", WHOLE, 1, To("train.inner_epochs"), "max_epochs"),
    ("train.agent_func_path", TEXT, None, Rule("rollout.executor", "env.use"), "agent_func_path"),
    ("ds.enable_sleep", SWITCH, False, Rule(_SLEEP), "deepspeed_enable_sleep"),
    ("ds.value_head_prefix", TEXT, "score", Rule("reward.reward_model.head"), "value_head_prefix"),
)

_DATA_AND_EVAL: tuple[Line, ...] = (
    ("data.prompt_dataset", TEXT, None, Rule("data.train"), "prompt_data"),
    ("data.prompt_probs", SHARES, None, Rule("data.probabilities"), "prompt_data_probs"),
    ("data.prompt_split", TEXT, "train", To("data.split"), "prompt_split"),
    ("data.input_key", TEXT, "input", Rule("data.prompt_key", "data.template"), "input_key"),
    ("data.label_key", TEXT, None, Rule("reward.http.label_key"), "label_key"),
    ("data.input_template", TEXT, None, Rule("data.template"), "input_template"),
    ("data.apply_chat_template", SWITCH, False, Rule("data.chat"), "apply_chat_template"),
    ("data.max_len", WHOLE, 2048, Rule(*_LENGTHS), "max_len"),
    ("data.max_samples", NUMBER, 1e8, Rule("data.max_samples"), "max_samples"),
    ("data.image_key", TEXT, "images", Rule("data.image_key"), "image_key"),
    ("data.max_images_per_prompt", WHOLE, 0, Rule("model.vision", "data.max_images"), "max_images_per_prompt"),
    ("eval.dataset", TEXT, None, _EVAL, "eval_dataset"),
    ("eval.steps", WHOLE, -1, _EVAL, "eval_steps"),
    ("eval.split", TEXT, "train", _EVAL, "eval_split"),
    ("eval.temperature", NUMBER, 0.6, _EVAL, "eval_temperature"),
    ("eval.n_samples_per_prompt", WHOLE, 4, _EVAL, "eval_n_samples_per_prompt"),
    ("ckpt.best_metric_key", TEXT, "", Rule("checkpoint.best_metric"), "best_metric_key"),
)

_REMOVED: tuple[Line, ...] = (
    # Up to 0.11.0; three names for what the four flags of today say.
    ("algo.advantage.is_correction_enable", SWITCH, False, _CORRECTION, "enable_vllm_is_correction"),
    ("algo.advantage.is_correction_type", choice("tis", "icepop", "seq-mask-tis"), "tis", _CORRECTION,
     "vllm_is_correction_type"),
    # Up to 0.10.1.
    ("ptx_coef", NUMBER, 0.05, why.PRETRAINING),
    ("perf", SWITCH, False, why.TIMING),
    ("actor_init_on_gpu", SWITCH, False, why.ON_DEVICE),
    # Up to 0.9; README and scripts still have them.
    ("prompt_max_len", WHOLE, None, Rule(*_LENGTHS)),
    ("generate_max_len", WHOLE, None, Rule(*_LENGTHS)),
)
# fmt: on


FLAGS = table(
    _ACTOR,
    trained("actor", "actor.", 1e-6, "actor_learning_rate"),
    _CRITIC,
    trained("critic", "critic.", 9e-6, "critic_learning_rate"),
    _OTHER_ROLES,
    _ROLLOUT,
    _ALGO,
    _TRAIN,
    (*DEEPSPEED, LIGER),
    adapted("actor", "critic"),
    _DATA_AND_EVAL,
    FILES,
    logged("openrlhf_train_ppo"),
    _REMOVED,
)
"""The table, by the names of 0.11.2."""
