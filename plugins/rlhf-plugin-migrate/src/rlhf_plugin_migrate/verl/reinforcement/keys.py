"""Keys of verl's ``main_ppo``, with the defaults of ``verl/trainer/config/ppo_trainer.yaml`` of verl 0.9.

``To`` is a counterpart of the same meaning; ``Rule`` lists the options that a function may set from the key and others.
"""

from __future__ import annotations

from ...table.entries import Missing, Nothing, Rule, To
from ...table.kinds import NUMBER, SWITCH, TEXT, WHOLE
from ..common import reasons
from ..common.adapter_keys import adapter_lines
from ..common.config_file import CONFIG
from ..common.key_table import Line, key_table
from ..common.optimizer_keys import STATE, optimizer_lines
from ..common.trainer_keys import trainer_lines
from .engine_keys import ENGINE, vllm_argument
from .unread import FAMILIES, GROUPS

_ACTOR, _ROLLOUT, _MODEL = (f"actor_rollout_ref.{part}" for part in ("actor", "rollout", "model"))
_CLIPPED = ("ppo", "gspo_token", "gmpo", "clip_cov", "cispo")
_CLIP = Rule(
    *(f"algo.loss.{loss}.{side}" for loss in _CLIPPED for side in ("clip_low", "clip_high"))
)
_LOSS = Rule("algo.loss.policy")
_KL = Rule("algo.kl.mode", "algo.kl.coef", "algo.kl.estimator", "algo.kl.unbiased_gradient")
_CORRECTION = Rule(
    "algo.correction.kind",
    "algo.correction.tis.high",
    "algo.loss.old_logprobs",
    *(
        f"algo.correction.importance.{name}"
        for name in ("level", "mode", "gate", "low", "high", "weight", "max_weight")
    ),
)
_MICRO = Rule("train.max_tokens_per_micro_batch")
_EVAL = Rule("eval.temperatures", "eval.n_samples")
_OVERLONG = Rule(
    "reward.shapers",
    "reward.overlong.buffer",
    "reward.overlong.factor",
    "reward.overlong.max_tokens",
)
_FILTER = Rule("rollout.filters", "rollout.max_refills")
_SLEEP = Rule("runtime.sleep")
_GPUS = Rule("runtime.ray.gpus", "runtime.ray.engines", "runtime.ray.colocate", "runtime.ray.ranks")
_REWARD = Rule("reward.use")
_MODEL_REWARD = Rule("reward.use", "reward.reward_model.path", "reward.reward_model.input")
_CHECKPOINTING = Rule("backend.torch.gradient_checkpointing", "backend.fsdp.gradient_checkpointing",
                      "backend.deepspeed.gradient_checkpointing")  # fmt: skip
_VISION = Rule("model.vision", "data.image_key")
_TOOLS = Rule("rollout.executor")
_SERVER = Missing("a sandbox is not asked: write a reward that asks it", off=(None,))

# fmt: off
_DATA: tuple[Line, ...] = (
    ("data.train_files", TEXT, "~/data/rlhf/gsm8k/train.parquet", Rule("data.train")),
    ("data.val_files", TEXT, "~/data/rlhf/gsm8k/test.parquet", Rule("eval.data")),
    ("data.train_max_samples", WHOLE, -1, Rule("data.max_samples")),
    ("data.val_max_samples", WHOLE, -1, Rule("eval.max_samples")),
    ("data.prompt_key", TEXT, "prompt", To("data.prompt_key")),
    ("data.image_key", TEXT, "images", _VISION),
    ("data.reward_fn_key", TEXT, "data_source", _REWARD),
    ("data.max_prompt_length", WHOLE, 512, To("data.max_prompt_tokens")),
    ("data.max_response_length", WHOLE, 512, Rule("rollout.max_new_tokens")),
    ("data.train_batch_size", WHOLE, 1024, Rule("rollout.batch_size")),
    ("data.gen_batch_size", WHOLE, None, Rule("rollout.batch_size")),
    ("data.filter_overlong_prompts", SWITCH, False, Rule("data.on_bad_row")),
    ("data.truncation", TEXT, "error", Rule("data.on_bad_row")),
    ("data.shuffle", SWITCH, True, To("data.shuffle")),
    ("data.seed", WHOLE, None, To("seed", if_given=True)),
    ("data.tokenizer", TEXT, None, To("model.tokenizer")),
    ("data.trust_remote_code", SWITCH, False, Nothing("model.trust_remote_code holds for the tokenizer, too")),
    ("data.apply_chat_template_kwargs", TEXT, None, Rule("data.chat_template_kwargs")),
)
_ALGORITHM: tuple[Line, ...] = (
    ("algorithm.adv_estimator", TEXT, "gae", Rule("algo.advantage.estimator")),
    ("algorithm.norm_adv_by_std_in_grpo", SWITCH, True, Rule("algo.advantage.estimator")),
    ("algorithm.gamma", NUMBER, 1.0, Rule("algo.advantage.gae.gamma", "algo.advantage.reinforce.gamma")),
    ("algorithm.lam", NUMBER, 1.0, Rule("algo.advantage.gae.lambda_")),
    ("algorithm.use_kl_in_reward", SWITCH, False, _KL),
    ("algorithm.kl_penalty", TEXT, "kl", _KL),
    ("algorithm.kl_ctrl.type", TEXT, "fixed", Rule("algo.kl.target")),
    ("algorithm.kl_ctrl.kl_coef", NUMBER, 0.001, _KL),
    ("algorithm.kl_ctrl.horizon", NUMBER, 10000.0, Rule("algo.kl.horizon")),
    ("algorithm.kl_ctrl.target_kl", NUMBER, 0.1, Rule("algo.kl.target")),
    ("algorithm.filter_groups.enable", SWITCH, False, _FILTER),
    ("algorithm.filter_groups.metric", TEXT, None, _FILTER),
    ("algorithm.filter_groups.max_num_gen_batches", WHOLE, 0, _FILTER),
    ("algorithm.rollout_correction.rollout_is", TEXT, None, _CORRECTION),
    ("algorithm.rollout_correction.rollout_is_threshold", TEXT, 2.0, _CORRECTION),
    ("algorithm.rollout_correction.rollout_is_batch_normalize", SWITCH, False,
     Missing("weights of a correction are not divided by their mean")),
    ("algorithm.rollout_correction.rollout_rs", TEXT, None, _CORRECTION),
    ("algorithm.rollout_correction.rollout_rs_threshold", TEXT, None, _CORRECTION),
    ("algorithm.rollout_correction.rollout_rs_threshold_lower", NUMBER, None, _CORRECTION),
    ("algorithm.rollout_correction.rollout_token_veto_threshold", NUMBER, None,
     Missing("no single token takes its sequence out", off=(None,))),
    ("algorithm.rollout_correction.bypass_mode", SWITCH, False, _CORRECTION),
    ("algorithm.rollout_correction.loss_type", TEXT, "ppo_clip", _CORRECTION),
    ("algorithm.use_pf_ppo", SWITCH, False, Missing("samples are not drawn again by their rewards (PF-PPO)")),
)
_LOSSES: tuple[Line, ...] = (
    (f"{_ACTOR}.policy_loss.loss_mode {_ACTOR}.loss_mode", TEXT, "vanilla", _LOSS),
    (f"{_ACTOR}.clip_ratio", NUMBER, 0.2, _CLIP),
    (f"{_ACTOR}.clip_ratio_low", NUMBER, 0.2, _CLIP),
    (f"{_ACTOR}.clip_ratio_high", NUMBER, 0.2, _CLIP),
    (f"{_ACTOR}.clip_ratio_c", NUMBER, 3.0, Rule("algo.loss.ppo.dual_clip", "algo.loss.dppo.max_ratio")),
    (f"{_ACTOR}.policy_loss.tau_pos {_ACTOR}.tau_pos", NUMBER, 1.0, Rule("algo.loss.sapo.tau_pos")),
    (f"{_ACTOR}.policy_loss.tau_neg {_ACTOR}.tau_neg", NUMBER, 1.05, Rule("algo.loss.sapo.tau_neg")),
    (f"{_ACTOR}.policy_loss.clip_cov_ratio {_ACTOR}.clip_cov_ratio", NUMBER, 0.0002,
     Rule("algo.loss.clip_cov.fraction")),
    (f"{_ACTOR}.policy_loss.clip_cov_lb {_ACTOR}.clip_cov_lb", NUMBER, 1.0, Rule("algo.loss.clip_cov.cov_low")),
    (f"{_ACTOR}.policy_loss.clip_cov_ub {_ACTOR}.clip_cov_ub", NUMBER, 5.0, Rule("algo.loss.clip_cov.cov_high")),
    (f"{_ACTOR}.policy_loss.kl_cov_ratio {_ACTOR}.kl_cov_ratio", NUMBER, 0.0002, Rule("algo.loss.kl_cov.fraction")),
    (f"{_ACTOR}.policy_loss.ppo_kl_coef", NUMBER, 0.1, Rule("algo.loss.kl_cov.kl_coef")),
    (f"{_ACTOR}.loss_agg_mode", TEXT, "token-mean", Rule("algo.loss.aggregation")),
    (f"{_ACTOR}.loss_scale_factor", NUMBER, None,
     Missing("the constant of seq-mean-token-sum-norm is rollout.max_new_tokens", off=(None,))),
    (f"{_ACTOR}.entropy_coeff", NUMBER, 0.0, To("algo.loss.entropy_coef")),
    (f"{_ACTOR}.use_kl_loss", SWITCH, False, _KL),
    (f"{_ACTOR}.kl_loss_coef", NUMBER, 0.001, _KL),
    (f"{_ACTOR}.kl_loss_type", TEXT, "low_var_kl", _KL),
)
_SIZES: tuple[Line, ...] = (
    (f"{_ACTOR}.ppo_mini_batch_size", WHOLE, 256, Rule("train.batch_size")),
    (f"{_ACTOR}.ppo_epochs", WHOLE, 1, To("train.inner_epochs")),
    (f"{_ACTOR}.ppo_micro_batch_size_per_gpu", WHOLE, None, _MICRO),
    (f"{_ACTOR}.ppo_micro_batch_size", WHOLE, None, _MICRO),
    (f"{_ACTOR}.use_dynamic_bsz", SWITCH, False, _MICRO),
    (f"{_ACTOR}.ppo_max_token_len_per_gpu", WHOLE, 16384, _MICRO),
    ("critic.ppo_mini_batch_size", WHOLE, None, Rule("train.batch_size")),
    ("critic.ppo_epochs", WHOLE, None, Rule("train.inner_epochs")),
    (f"{_ROLLOUT}.n", WHOLE, 1, To("rollout.n_samples_per_prompt")),
    ("async_training.staleness_threshold", NUMBER, 0.1, Rule("rollout.max_staleness")),
    ("async_training.trigger_parameter_sync_step", WHOLE, 4, Rule("rollout.max_staleness")),
    ("async_training.require_batches", WHOLE, 1, Rule("rollout.batch_size")),
    ("async_training.partial_rollout", SWITCH, True, Rule("rollout.in_flight_updates")),
    ("rollout.total_rollout_steps", WHOLE, None, Rule("train.steps")),
)
_MACHINE: tuple[Line, ...] = (
    ("trainer.nnodes", WHOLE, 1, _GPUS),
    ("trainer.n_gpus_per_node", WHOLE, 8, _GPUS),
    (f"rollout.nnodes {_ROLLOUT}.nnodes", WHOLE, 0, _GPUS),
    (f"rollout.n_gpus_per_node {_ROLLOUT}.n_gpus_per_node", WHOLE, 8, _GPUS),
    (f"model_engine {_ACTOR}.strategy {_ACTOR}.model_engine", TEXT, "fsdp", Rule("backend.name")),
    (f"{_ACTOR}.ulysses_sequence_parallel_size {_ACTOR}.fsdp_config.ulysses_sequence_parallel_size "
     f"{_ACTOR}.veomni.ulysses_parallel_size", WHOLE, 1, Rule("backend.deepspeed.sequence_parallel")),
    (f"{_ACTOR}.fsdp_config.param_offload {_ACTOR}.megatron.param_offload {_ACTOR}.veomni.param_offload "
     f"{_ACTOR}.engine.param_offload", SWITCH, False, _SLEEP),
    (f"{_ACTOR}.fsdp_config.optimizer_offload {_ACTOR}.megatron.optimizer_offload {_ACTOR}.veomni.optimizer_offload "
     f"{_ACTOR}.engine.optimizer_offload", SWITCH, False, _SLEEP),
    (f"{_ACTOR}.fsdp_config.reshard_after_forward", SWITCH, True, Rule("backend.fsdp.reshard_after_forward")),
    (f"{_ACTOR}.fsdp_config.model_dtype", TEXT, "fp32", Rule("model.dtype")),
    (f"{_ACTOR}.freeze_vision_tower", SWITCH, False, Rule("actor.freeze_visual_encoder")),
    (f"{_MODEL}.path", TEXT, "~/models/deepseek-llm-7b-chat", To("model.path")),
    (f"{_MODEL}.tokenizer_path", TEXT, None, To("model.tokenizer")),
    (f"{_MODEL}.trust_remote_code", SWITCH, False, To("model.trust_remote_code")),
    (f"{_MODEL}.enable_gradient_checkpointing", SWITCH, True, _CHECKPOINTING),
    ("critic.model.path", TEXT, "~/models/deepseek-llm-7b-chat", Rule("critic.path")),
    ("critic.cliprange_value", NUMBER, 0.5, Rule("critic.value_clip")),
    ("trainer.critic_warmup", WHOLE, 0, Rule("critic.warmup_steps")),
    ("critic.enable", SWITCH, None, Nothing("the estimator says whether there is a critic")),
)
_SAMPLING: tuple[Line, ...] = (
    (f"{_ROLLOUT}.temperature", NUMBER, 1.0, To("rollout.temperature")),
    (f"{_ROLLOUT}.top_p", NUMBER, 1.0, To("rollout.top_p")),
    (f"{_ROLLOUT}.top_k", WHOLE, -1, To("rollout.top_k", convert=lambda value: max(int(str(value)), 0))),
    (f"{_ROLLOUT}.ignore_eos", SWITCH, False, Missing("a response ends at its end token")),
    (f"{_ROLLOUT}.val_kwargs.temperature", NUMBER, 0.0, _EVAL),
    (f"{_ROLLOUT}.val_kwargs.do_sample", SWITCH, False, Rule()),
    (f"{_ROLLOUT}.val_kwargs.n", WHOLE, 1, _EVAL),
    (f"{_ROLLOUT}.val_kwargs.top_p", NUMBER, 1.0, _EVAL),
    (f"{_ROLLOUT}.val_kwargs.top_k", WHOLE, -1, _EVAL),
    (f"{_ROLLOUT}.multi_turn.enable", SWITCH, False, _TOOLS),
    (f"{_ROLLOUT}.multi_turn.max_assistant_turns", WHOLE, None, _TOOLS),
    (f"{_ROLLOUT}.multi_turn.max_user_turns", WHOLE, None, _TOOLS),
    (f"{_ROLLOUT}.multi_turn.tool_config_path data.tool_config_path", TEXT, None, _TOOLS),
    (f"{_ROLLOUT}.multi_turn.function_tool_path data.function_tool_path", TEXT, None, _TOOLS),
    (f"{_ROLLOUT}.multi_turn.interaction_config_path", TEXT, None, _TOOLS),
)
_REWARDS: tuple[Line, ...] = (
    ("reward.custom_reward_function.path custom_reward_function.path", TEXT, None, _REWARD),
    ("reward.custom_reward_function.name custom_reward_function.name", TEXT, "compute_score", _REWARD),
    ("reward.reward_manager.name reward_manager.name reward_model.reward_manager reward_manager", TEXT, "naive",
     _REWARD),
    ("reward.reward_manager.source reward_manager.source", TEXT, "register", _REWARD),
    ("reward.reward_model.enable reward_model.enable", SWITCH, False, _MODEL_REWARD),
    ("reward.reward_model.model_path reward_model.model.path", TEXT, None, _MODEL_REWARD),
    ("reward_model.model.input_tokenizer", TEXT, "", _MODEL_REWARD),
    ("reward.reward_kwargs.overlong_buffer_cfg.enable reward_model.reward_kwargs.overlong_buffer_cfg.enable "
     "reward_model.overlong_buffer.enable", SWITCH, False, _OVERLONG),
    ("reward.reward_kwargs.overlong_buffer_cfg.len reward_model.reward_kwargs.overlong_buffer_cfg.len "
     "reward_model.overlong_buffer.len", WHOLE, 0, _OVERLONG),
    ("reward.reward_kwargs.overlong_buffer_cfg.penalty_factor "
     "reward_model.reward_kwargs.overlong_buffer_cfg.penalty_factor reward_model.overlong_buffer.penalty_factor",
     NUMBER, 0.0, _OVERLONG),
    ("reward.reward_kwargs.overlong_buffer_cfg.log reward_model.reward_kwargs.overlong_buffer_cfg.log "
     "reward_model.overlong_buffer.log", SWITCH, False, Nothing("the penalty is recorded as rollout/overlong/penalty")),
    ("reward.reward_kwargs.max_resp_len reward_model.reward_kwargs.max_resp_len", WHOLE, None, _OVERLONG),
    ("reward.sandbox_fusion.url reward_model.sandbox_fusion.url sandbox_fusion.url", TEXT, None, _SERVER),
    ("algorithm.gdpo_reward_keys", TEXT, None, Missing("gdpo normalizes each reward of reward.use by itself")),
)
# fmt: on

KEYS = key_table(
    (
        *_DATA,
        *_ALGORITHM,
        *_LOSSES,
        *_SIZES,
        *_MACHINE,
        *_SAMPLING,
        *_REWARDS,
        *CONFIG,
        *ENGINE,
        *trainer_lines(epochs=30, project="verl_examples", run="gsm8k", seed=None),
        *optimizer_lines(f"{_ACTOR}.optim", "actor", lr=1e-6, old_norm=f"{_ACTOR}.grad_clip"),
        *optimizer_lines("critic.optim", "critic", lr=1e-5, old_norm="critic.grad_clip"),
        *adapter_lines(_MODEL, "actor"),
        *adapter_lines("critic.model", "critic"),
    ),
    GROUPS,
    (
        *FAMILIES,
        (f"{_ROLLOUT}.engine_kwargs.vllm.", vllm_argument),
        ("data.apply_chat_template_kwargs.", lambda rest: To(f"data.chat_template_kwargs.{rest}")),
        (
            "reward.custom_reward_function.reward_kwargs. custom_reward_function.reward_kwargs.",
            _REWARD,
        ),
        (f"{_MODEL}.override_config.", reasons.MODEL_CONFIG),
        (f"{_ACTOR}.optim. critic.optim.", STATE),
        (f"{_MODEL}.lora. critic.model.lora.", reasons.ADAPTER_DETAIL),
    ),
)
"""The table."""
