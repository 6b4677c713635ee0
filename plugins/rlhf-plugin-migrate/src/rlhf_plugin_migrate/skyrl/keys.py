"""Keys of SkyRL's ``main_base``, with the defaults of ``skyrl/train/config/config.py`` of August 2026.

Older names are those of the package ``skyrl_train`` 0.3.
"""

from __future__ import annotations

from ..table.entries import Missing, Nothing, Rule, To
from ..table.kinds import NUMBER, SWITCH, TEXT, WHOLE
from ..verl.common import reasons
from ..verl.common.key_table import Line, key_table
from ..verl.reinforcement.engine_keys import vllm_argument

ALGORITHM, POLICY = "trainer.algorithm", "trainer.policy"
PLACEMENT, ENGINE = "trainer.placement", "generator.inference_engine"
ENV_CONFIG = "environment.skyrl_gym."
OF_LOSSES = {
    f"{ALGORITHM}.sapo.tau_pos": ("sapo.tau_pos", 1.0),
    f"{ALGORITHM}.sapo.tau_neg": ("sapo.tau_neg", 1.05),
    f"{ALGORITHM}.clip_cov.clip_ratio": ("clip_cov.fraction", 0.0002),
    f"{ALGORITHM}.clip_cov.clip_cov_lb": ("clip_cov.cov_low", 1.0),
    f"{ALGORITHM}.clip_cov.clip_cov_ub": ("clip_cov.cov_high", 5.0),
    f"{ALGORITHM}.kl_cov.kl_cov_frac": ("kl_cov.fraction", 0.2),
    f"{ALGORITHM}.kl_cov.ppo_kl_coef": ("kl_cov.kl_coef", 1.0),
    f"{ALGORITHM}.cispo.cispo_eps_clip_low": ("cispo.clip_low", 1.0),
    f"{ALGORITHM}.cispo.cispo_eps_clip_high": ("cispo.clip_high", 4.0),
    f"{ALGORITHM}.dppo.delta_high": ("dppo.threshold", 0.2),
}
"""Key of one loss -> our option of it, below ``algo.loss``, and SkyRL's default."""
_RULE = Rule()
"""Fate of a key that is read together with others, in ``main_base`` and ``algorithm``."""
_SAMPLES = Nothing("samples of each step and evaluation are in samples.jsonl: rlhf show")
_SERVED = Missing("engines are part of the run; no server is asked", off=(None, True))


# fmt: off
def _role_lines(prefix: str, role: str, lr: float) -> tuple[Line, ...]:
    optimizer, adapter = f"{prefix}.optimizer_config", f"{prefix}.model.lora"
    return (
        (f"{optimizer}.lr", NUMBER, lr, To(f"{role}.adam.lr")),
        (f"{optimizer}.adam_betas", TEXT, [0.9, 0.999], To(f"{role}.adam.betas")),
        (f"{optimizer}.weight_decay", NUMBER, 0.01, To(
            f"{role}.adam.weight_decay", differs="matrices are decayed; SkyRL decays biases and norms too")),
        (f"{optimizer}.max_grad_norm", NUMBER, 1.0, To(f"{role}.max_norm", lambda norm: norm or "none")),
        (f"{optimizer}.offload_after_step", SWITCH, True, Nothing("runtime.sleep says what leaves the GPU")),
        (f"{optimizer}.num_warmup_steps", WHOLE, 0, _RULE),
        (f"{optimizer}.scheduler", TEXT, "constant_with_warmup", _RULE),
        (f"{adapter}.rank", WHOLE, 0, _RULE),
        (f"{adapter}.alpha", WHOLE, 16, _RULE),
        (f"{adapter}.dropout", NUMBER, 0.0, _RULE),
        (f"{adapter}.target_modules", TEXT, "all-linear", _RULE),
        (f"{adapter}.exclude_modules", TEXT, None, _RULE),
    )


_LINES: tuple[Line, ...] = (
    ("data.train_data", TEXT, ["~/data/gsm8k/train.parquet"], _RULE),
    ("data.val_data", TEXT, ["~/data/gsm8k/validation.parquet"], _RULE),
    (f"{POLICY}.model.path", TEXT, "Qwen/Qwen2.5-1.5B-Instruct", To("model.path")),
    ("trainer.bf16", SWITCH, True, To("model.dtype", lambda is_bf16: "float32")),
    ("trainer.seed", WHOLE, 42, To("seed", if_given=True)),
    ("trainer.max_prompt_length", WHOLE, 512, To("data.max_prompt_tokens")),
    ("trainer.train_batch_size", WHOLE, 1024, To("rollout.batch_size")),
    ("trainer.policy_mini_batch_size", WHOLE, 256, _RULE),
    ("trainer.critic_mini_batch_size", WHOLE, 256, Nothing("the critic's minibatches are the policy's")),
    ("trainer.update_epochs_per_batch", WHOLE, 1, To("train.inner_epochs")),
    ("trainer.micro_train_batch_size_per_gpu", WHOLE, 1, _RULE),
    ("trainer.max_tokens_per_microbatch", WHOLE, -1, _RULE),
    ("trainer.epochs", WHOLE, 1, _RULE),
    ("trainer.max_training_steps", WHOLE, None, _RULE),
    ("trainer.eval_interval", WHOLE, 5, _RULE),
    ("trainer.eval_before_train", SWITCH, True, To("eval.at_start")),
    ("trainer.ckpt_interval", WHOLE, 10, _RULE),
    ("trainer.max_ckpts_to_keep", WHOLE, -1, _RULE),
    ("trainer.ckpt_path", TEXT, "~/ckpts/", _RULE),
    ("trainer.resume_mode", TEXT, "latest", _RULE),
    ("trainer.resume_path", TEXT, None, Missing("checkpoints of SkyRL cannot be read", off=(None,))),
    ("trainer.logger", TEXT, "wandb", _RULE),
    ("trainer.project_name", TEXT, "skyrl", _RULE),
    ("trainer.run_name", TEXT, "test_run", _RULE),
    ("trainer.strategy", TEXT, "fsdp", _RULE),
    ("trainer.gradient_checkpointing", SWITCH, True, _RULE),
    (f"{POLICY}.sequence_parallel_size", WHOLE, 1, _RULE),
    (f"{PLACEMENT}.colocate_all", SWITCH, True, _RULE),
    (f"{PLACEMENT}.policy_num_nodes", WHOLE, 1, _RULE),
    (f"{PLACEMENT}.policy_num_gpus_per_node", WHOLE, 1, _RULE),
    (f"{ENGINE}.num_engines generator.num_inference_engines", WHOLE, 1, _RULE),
    (f"{ENGINE}.tensor_parallel_size generator.inference_engine_tensor_parallel_size", WHOLE, 1, _RULE),
    (f"{ENGINE}.backend generator.backend", TEXT, "vllm", _RULE),
    (f"{ENGINE}.gpu_memory_utilization generator.gpu_memory_utilization", NUMBER, 0.8, To("engine.vllm.memory_share")),
    (f"{ENGINE}.enforce_eager generator.enforce_eager", SWITCH, False,
     To("engine.vllm.compile", lambda eager: not eager, if_given=True)),
    (f"{ENGINE}.enable_prefix_caching generator.enable_prefix_caching", SWITCH, True, To("engine.vllm.prefix_caching")),
    (f"{ENGINE}.max_num_batched_tokens generator.max_num_batched_tokens", WHOLE, 8192,
     To("engine.vllm.args.max_num_batched_tokens", if_given=True)),
    (f"{ENGINE}.max_num_seqs generator.max_num_seqs", WHOLE, 1024, To("engine.vllm.args.max_num_seqs", if_given=True)),
    (f"{ENGINE}.run_engines_locally generator.run_engines_locally", SWITCH, True, _SERVED),
    ("generator.n_samples_per_prompt", WHOLE, 5, To("rollout.n_samples_per_prompt")),
    ("generator.sampling_params.max_generate_length", WHOLE, 1024, To("rollout.max_new_tokens")),
    ("generator.sampling_params.temperature", NUMBER, 1.0, To("rollout.temperature")),
    ("generator.sampling_params.top_p", NUMBER, 1.0, To("rollout.top_p")),
    ("generator.sampling_params.top_k", WHOLE, -1, To("rollout.top_k", lambda k: 0 if k == -1 else k)),
    ("generator.sampling_params.min_p", NUMBER, 0.0, To("rollout.min_p", if_given=True)),
    ("generator.sampling_params.stop", TEXT, None, To("rollout.stop")),
    ("generator.eval_sampling_params.temperature", NUMBER, 0.0, _RULE),
    ("generator.eval_n_samples_per_prompt", WHOLE, 1, _RULE),
    ("generator.max_input_length", WHOLE, None, _RULE),
    ("generator.max_turns", WHOLE, 1, _RULE),
    ("environment.env_class", TEXT, "gsm8k", _RULE),
    (f"{ENV_CONFIG}search.log_requests", SWITCH, False, _RULE),
    (f"{ENV_CONFIG}search.search_url", TEXT, "http://127.0.0.1:8000/retrieve", _RULE),
    (f"{ENV_CONFIG}search.topk", WHOLE, 3, _RULE),
    (f"{ENV_CONFIG}search.timeout", WHOLE, 30, _RULE),
    (f"{ENV_CONFIG}text2sql.db_path", TEXT, "/home/ray/default/sql_data", _RULE),
    ("generator.zero_reward_on_non_stop", SWITCH, False, Missing(
        "the shaper stop_properly replaces the reward of truncated answers: reward.shapers")),
    ("generator.apply_overlong_filtering", SWITCH, False,
     Missing("truncated samples are trained on; the shaper stop_properly scales or replaces their reward")),
    (f"{ALGORITHM}.advantage_estimator", TEXT, "grpo", _RULE),
    (f"{ALGORITHM}.grpo_norm_by_std", SWITCH, True, _RULE),
    (f"{ALGORITHM}.gamma", NUMBER, 1.0, _RULE),
    (f"{ALGORITHM}.lambd", NUMBER, 1.0, _RULE),
    (f"{ALGORITHM}.policy_loss_type", TEXT, "regular", _RULE),
    (f"{ALGORITHM}.loss_reduction", TEXT, "token_mean", _RULE),
    (f"{ALGORITHM}.eps_clip_low", NUMBER, 0.2, _RULE),
    (f"{ALGORITHM}.eps_clip_high", NUMBER, 0.2, _RULE),
    (f"{ALGORITHM}.clip_ratio_c", NUMBER, 3.0, _RULE),
    (f"{ALGORITHM}.use_kl_loss", SWITCH, True, _RULE),
    (f"{ALGORITHM}.use_kl_in_reward", SWITCH, False, _RULE),
    (f"{ALGORITHM}.kl_loss_coef", NUMBER, 0.001, _RULE),
    (f"{ALGORITHM}.kl_estimator_type", TEXT, "k3", _RULE),
    (f"{ALGORITHM}.use_entropy_loss", SWITCH, False, _RULE),
    (f"{ALGORITHM}.entropy_loss_coef", NUMBER, 0.01, _RULE),
    (f"{ALGORITHM}.value_clip", NUMBER, 0.2, _RULE),
    (f"{ALGORITHM}.off_policy_correction.tis_ratio_type", TEXT, None, _RULE),
    (f"{ALGORITHM}.off_policy_correction.token_tis_ratio_clip_high", NUMBER, 2.0, _RULE),
    (f"{ALGORITHM}.off_policy_correction.sequence_tis_ratio_clip_high", NUMBER, 5.0, _RULE),
    (f"{ALGORITHM}.use_tis", SWITCH, False, _RULE),
    (f"{ALGORITHM}.tis_imp_ratio_cap", NUMBER, -1.0, _RULE),
    (f"{ALGORITHM}.dynamic_sampling.type", TEXT, None, _RULE),
    (f"{ALGORITHM}.dynamic_sampling.max_sample_batches", WHOLE, 30, _RULE),
    (f"{ALGORITHM}.zero_variance_filter", SWITCH, False, _RULE),
    (f"{ALGORITHM}.overlong_buffer_len", WHOLE, None, _RULE),
    (f"{ALGORITHM}.overlong_buffer_penalty_factor", NUMBER, 1.0, _RULE),
    *((key, NUMBER, default, _RULE) for key, (_, default) in OF_LOSSES.items()),
    (f"{ALGORITHM}.dppo.dppo_type", TEXT, "binary_tv", _RULE),
    ("trainer.fully_async.enabled", SWITCH, False, _RULE),
    ("trainer.fully_async.max_staleness_steps", WHOLE, 4, _RULE),
    ("trainer.critic.model.path", TEXT, None, _RULE),
    *_role_lines(POLICY, "actor", 1e-6),
    *_role_lines("trainer.critic", "critic", 5e-6),
)
_REFERENCE = Nothing(
    "the reference is the model at the start, and its ranks are placed with the policy's"
)

KEYS = key_table(
    _LINES,
    groups=(
        (reasons.FAST, "trainer.flash_attn trainer.logprobs_chunk_size trainer.micro_forward_batch_size_per_gpu "
         "trainer.recompute_old_logprobs_per_minibatch generator.batched trainer.eval_batch_size"),
        (reasons.PACKED, "trainer.remove_microbatch_padding trainer.use_sample_packing"),
        (reasons.STORED, "trainer.hf_save_interval trainer.export_path"),
        (_SAMPLES, "trainer.dump_data_batch trainer.dump_eval_results trainer.print_example_interval "
         "trainer.num_logger_eval_samples trainer.num_logger_train_samples trainer.log_example_interval"),
        (Nothing("the run folder has its log"), "trainer.log_path"),
        (Nothing("held-out prompts are sampled as training prompts are, but for the temperature"),
         "generator.eval_sampling_params.max_generate_length"),
        (Missing("held-out prompts are sampled with rollout.top_p and top_k, too", off=(None, "1.0", 1.0, -1)),
         "generator.eval_sampling_params.top_p generator.eval_sampling_params.top_k"),
        (Nothing("turns are appended as they were sampled"), "generator.use_conversation_multi_turn "
         "generator.append_eos_token_after_stop_str_in_multi_turn"),
    ),
    families=(
        ("data.dataloader. trainer.fully_async. generator.use_cache_salt trainer.use_expandable_segments "
         "trainer.vocab_entropy_chunk trainer.fused_lm_head trainer.enable_ray_gpu_monitor", reasons.FAST),
        (f"{POLICY}.fsdp_config. trainer.critic.fsdp_config. trainer.ref.fsdp_config.", reasons.SHARDED),
        (f"{PLACEMENT}. {ENGINE}.weight_sync_backend generator.weight_sync_backend {ENGINE}.async_engine "
         f"generator.async_engine {ENGINE}.distributed_executor_backend", reasons.PLACED),
        ("trainer.ref.", _REFERENCE),
        (f"{POLICY}.megatron_config. trainer.ref.megatron_config.", reasons.MEGATRON),
        (f"{ENGINE}.engine_init_kwargs. generator.engine_init_kwargs.", vllm_argument),
        (f"{ALGORITHM}.off_policy_correction.",
         Missing("choose a correction of ours: algo.correction.kind", off=(None,))),
        ("trainer.mtp.", reasons.MTP),
        (f"{POLICY}.torch_profiler_config. {POLICY}.record_memory", reasons.PROFILED),
        (f"{POLICY}.model.fake_int4_qat. trainer.critic.model.fake_int4_qat.", reasons.PRECISION),
        (f"{POLICY}.model.lora. trainer.critic.model.lora.", reasons.ADAPTER_DETAIL),
        (f"{POLICY}.use_torch_compile", Missing("layers are compiled with backend.NAME.compile")),
        (f"{POLICY}.inference_only_init", reasons.FAST),
        (f"{ALGORITHM}.temperature", Nothing("log-probs are at rollout.temperature")),
        (f"{ALGORITHM}.advantage_batch_normalize",
         Missing("whitening over a batch is an option of estimators: algo.advantage")),
        (f"{ALGORITHM}.value_head_prefix {ALGORITHM}.zero_variance_filter_tol "
         f"{ALGORITHM}.dynamic_sampling.min_replace_ratio", reasons.DETAIL),
        (f"{ALGORITHM}.cispo.cispo_anchor", Missing("the ratio is to algo.loss.old_logprobs", off=(None, "old"))),
        (f"{ALGORITHM}.dppo.delta_low", Missing("there is one threshold for both directions: delta_high")),
        (f"{ALGORITHM}.max_seq_len", Missing("the constant of seq_mean_token_sum_norm is rollout.max_new_tokens")),
        ("generator.sampling_params.additional_kwargs", Missing("further arguments of samplers are no options")),
        (f"{ENV_CONFIG}llm_as_a_judge.", Missing("a judge is a reward of yours (docs/rewards.md)")),
        (f"{POLICY}.model_config_kwargs trainer.critic.model_config_kwargs trainer.ref.model_config_kwargs",
         reasons.MODEL_CONFIG),
        (f"{ALGORITHM}.kl_ctrl.", Missing("set algo.kl.target and algo.kl.horizon", off=(None, "fixed"))),
        ("generator.sampling_params.repetition_penalty",
         Missing("a penalty would make the sampler's log-probs differ from the model's", off=(None, 1, 1.0))),
        ("generator.sampling_params.logprobs", Nothing("log-probs are always recorded")),
        ("generator.chat_template.", reasons.TEMPLATE),
        ("generator.chat_template_kwargs", lambda rest: To(f"data.chat_template_kwargs{rest}")),
        ("generator.step_wise_trajectories generator.merge_stepwise_output",
         Nothing("turns whose history was rewritten become rows of their own by themselves")),
        ("generator.vision_language_generator", Missing("set model.vision = vlm and data.image_key")),
        (f"{POLICY}.language_model_only trainer.ref.language_model_only {ENGINE}.language_model_only",
         Nothing("images are read with model.vision alone")),
        (f"{ENV_CONFIG}max_env_workers", Nothing("all episodes are played at once: rollout.concurrency bounds them")),
        ("generator.eval_sampling_params", Missing(
            "held-out prompts are sampled as training prompts are, but for the temperature", off=(None,))),
        (f"{ENGINE}.", Missing("engine.vllm.args takes arguments of vLLM", off=(None, False, 1, 0))),
        ("trainer.tags", Missing("tags are set in the logger's own page", off=(None,))),
        ("trainer.sequence_parallel_backend", Nothing("ranks trade tokens for heads (Ulysses)")),
        ("trainer.critic.sequence_parallel_size", Nothing("the critic's ranks work as the policy's do")),
        ("trainer.gradient_checkpointing_use_reentrant trainer.disable_fast_tokenizer", reasons.FAST),
        ("trainer.update_ref_every_epoch", Missing("the reference is the model at the start, all along")),
    ),
    framework="SkyRL",
)
"""The table."""
# fmt: on
