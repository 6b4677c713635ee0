"""Keys of ``main_ppo`` that no rule reads: those without a counterpart, and those that need none."""

from __future__ import annotations

from ...table.entries import Fate, Missing, Nothing
from ..common import reasons
from ..common.key_table import Group

_ROLLOUT = "actor_rollout_ref.rollout"
_CRITIC = Nothing("the critic is computed as the policy is")
_QUEUE = Missing("no queue of tokens is a service of its own", off=(None, False))
_RAY = Missing(
    "options of Ray's own start are those of the cluster: runtime.ray", off=(None, "null")
)

GROUPS: tuple[Group, ...] = (
    (
        reasons.FAST,
        "actor_rollout_ref.actor.use_torch_compile actor_rollout_ref.ref.use_torch_compile "
        "actor_rollout_ref.actor.entropy_from_logits_with_chunking actor_rollout_ref.actor.entropy_checkpointing "
        "actor_rollout_ref.ref.entropy_from_logits_with_chunking actor_rollout_ref.ref.entropy_checkpointing "
        "actor_rollout_ref.actor.entropy_from_logits_chunk_size actor_rollout_ref.ref.entropy_from_logits_chunk_size "
        "actor_rollout_ref.actor.calculate_entropy actor_rollout_ref.actor.calculate_sum_pi_squared "
        "actor_rollout_ref.actor.sum_pi_squared_checkpointing actor_rollout_ref.actor.use_fused_kernels "
        "actor_rollout_ref.model.use_fused_kernels actor_rollout_ref.model.use_shm data.use_shm "
        "actor_rollout_ref.model.enable_activation_offload critic.model.enable_activation_offload "
        "data.dataloader_num_workers data.num_workers data.filter_overlong_prompts_workers trainer.balance_batch "
        "actor_rollout_ref.actor.pad_to_length actor_rollout_ref.ref.pad_to_length "
        f"{_ROLLOUT}.layered_summon {_ROLLOUT}.load_format {_ROLLOUT}.disable_log_stats "
        f"{_ROLLOUT}.cudagraph_capture_sizes {_ROLLOUT}.skip_tokenizer_init {_ROLLOUT}.enable_sleep_mode "
        f"{_ROLLOUT}.multi_stage_wake_up {_ROLLOUT}.agent.num_workers {_ROLLOUT}.scheduling_policy "
        "actor_rollout_ref.nccl_timeout actor_rollout_ref.actor.megatron.grad_offload reward.num_workers "
        "reward_model.num_workers reward_model.use_reward_loop reward_model.launch_reward_fn_async "
        "actor_rollout_ref.model.lora.merge",
    ),
    (
        reasons.PACKED,
        "actor_rollout_ref.model.use_remove_padding actor_rollout_ref.actor.use_remove_padding "
        "critic.model.use_remove_padding reward_model.model.use_remove_padding "
        "actor_rollout_ref.actor.megatron.use_remove_padding actor_rollout_ref.actor.use_prefix_grouper",
    ),
    (
        reasons.SCORED,
        " ".join(
            f"actor_rollout_ref.{part}.log_prob_{name}"
            for part in ("rollout", "ref")
            for name in ("micro_batch_size", "micro_batch_size_per_gpu", "use_dynamic_bsz", "max_token_len_per_gpu")
        )
        + f" {_ROLLOUT}.micro_batch_size",
    ),
    (Nothing("log-probs of the sampler are asked for where a component reads them"), f"{_ROLLOUT}.calculate_log_probs"),
    (
        Nothing("the lengths are those of data.max_prompt_length and data.max_response_length"),
        f"{_ROLLOUT}.prompt_length {_ROLLOUT}.response_length",
    ),
    (
        Nothing("prompts are rendered with the chat template, and rewards get the whole row"),
        "data.return_raw_input_ids data.return_raw_chat data.return_full_prompt data.return_multi_modal_inputs",
    ),
    (
        Nothing("the model's image processor says it"),
        "data.image_patch_size data.mm_processor_kwargs",
    ),
    (Nothing("held-out prompts keep their order, and all are answered at once"),
     "data.val_batch_size data.validation_shuffle"),
    (Nothing("minibatches are drawn from the run's seed"),
     "actor_rollout_ref.actor.shuffle critic.shuffle actor_rollout_ref.actor.data_loader_seed "
     "critic.data_loader_seed"),
    (_CRITIC, "critic.ppo_micro_batch_size critic.ppo_micro_batch_size_per_gpu critic.use_dynamic_bsz "
              "critic.ppo_max_token_len_per_gpu critic.forward_max_token_len_per_gpu critic.forward_micro_batch_size "
              "critic.forward_micro_batch_size_per_gpu critic.ulysses_sequence_parallel_size critic.strategy "
              "critic.model.enable_gradient_checkpointing critic.model.trust_remote_code critic.model.tokenizer_path "
              "critic.model.use_shm critic.model.use_fused_kernels critic.model.lora.merge "
              "critic.model.fused_kernel_options.impl_backend "
              "critic.rollout_n critic.loss_agg_mode critic.loss_scale_factor"),
    (Nothing("the reward model is computed in one process, in micro-batches of reward.reward_model.batch_tokens"),
     "reward_model.micro_batch_size reward_model.micro_batch_size_per_gpu reward_model.use_dynamic_bsz "
     "reward_model.forward_max_token_len_per_gpu reward_model.strategy reward_model.ulysses_sequence_parallel_size "
     "reward_model.enable_resource_pool reward_model.n_gpus_per_node reward_model.nnodes "
     "reward.reward_model.enable_resource_pool reward.reward_model.n_gpus_per_node reward.reward_model.nnodes "
     "reward_model.max_length reward_model.model.trust_remote_code reward_model.model.external_lib"),
    (Nothing("the reference is computed as the policy is"),
     "actor_rollout_ref.ref.strategy actor_rollout_ref.ref.rollout_n actor_rollout_ref.actor.rollout_n "
     "actor_rollout_ref.ref.ulysses_sequence_parallel_size"),
    (reasons.CLASS, "data.custom_cls.path data.custom_cls.name data.sampler.class_path data.sampler.class_name "
                    "data.datagen.path data.datagen.name"),
    (reasons.AGENT, f"{_ROLLOUT}.agent.default_agent_loop {_ROLLOUT}.agent.agent_loop_config_path "
                    f"{_ROLLOUT}.agent.agent_loop_manager_class"),
    (reasons.EXTERNAL, "actor_rollout_ref.model.external_lib critic.model.external_lib"),
    (reasons.TEMPLATE, "actor_rollout_ref.model.custom_chat_template critic.model.custom_chat_template"),
    (reasons.LIGER, "actor_rollout_ref.model.use_liger critic.model.use_liger"),
    (reasons.MODEL_CONFIG, "actor_rollout_ref.model.hf_config_path critic.model.hf_config_path"),
    (Missing("the policy samples its responses", off=(True,)), f"{_ROLLOUT}.do_sample"),
    (Missing("weights are served as they are", off=(None,)), f"{_ROLLOUT}.quantization_config_file"),
    (Missing("there is no such loss", off=(None,)), "actor_rollout_ref.actor.policy_loss.dro_beta"),
    (Missing("kernels of a GPU are not forced to be deterministic", off=(None, False)),
     f"{_ROLLOUT}.full_determinism"),
    (Nothing("samples are drawn from the run's seed"), f"{_ROLLOUT}.seed"),
    (Nothing("training has the log-probs of the distribution that was sampled from"), f"{_ROLLOUT}.logprobs_mode"),
    (Nothing("a matter of metrics"), f"{_ROLLOUT}.moe_load_balance_metrics_interval"),
    (Nothing("prompts are drawn again one batch after another"), "algorithm.filter_groups.max_inflight_gen_batches"),
    (Missing("videos are not read from rows: give their frames as images", off=(None, "videos")), "data.video_key"),
    (Missing("sound is not read", off=(None, "audios")), "data.audio_key"),
    (Missing("a share of samples that ends last is not left out; rollout.oversampling starts more prompts",
             off=(None, 0, 0.0)), f"{_ROLLOUT}.over_sample_rate"),
    (Missing("routes of experts are replayed with algo.correction.replay_routes", off=(None, False, "disabled")),
     f"{_ROLLOUT}.enable_rollout_routing_replay actor_rollout_ref.actor.router_replay.mode "
     "actor_rollout_ref.actor.megatron.router_replay.mode actor_rollout_ref.actor.veomni.router_replay.mode "
     "actor_rollout_ref.ref.router_replay.mode actor_rollout_ref.actor.router_replay.record_file "
     "actor_rollout_ref.actor.router_replay.replay_file actor_rollout_ref.ref.router_replay.record_file "
     "actor_rollout_ref.ref.router_replay.replay_file"),
    (reasons.PLACED, "actor_rollout_ref.hybrid_engine trainer.use_legacy_worker_impl trainer.use_v1 trainer.device "
                     "trainer.ray_wait_register_center_timeout trainer.v1.trainer_mode"),
)  # fmt: skip

_BY_FATE: tuple[Group, ...] = (
    (
        reasons.SHARDED,
        "actor_rollout_ref.actor.fsdp_config. actor_rollout_ref.ref.fsdp_config. critic.model.fsdp_config. "
        "critic.fsdp. reward_model.model.fsdp_config.",
    ),
    (reasons.MEGATRON,
     "actor_rollout_ref.actor.megatron. actor_rollout_ref.ref.megatron. critic.megatron. reward_model.megatron."),
    (reasons.OTHER_ENGINE, "actor_rollout_ref.actor.veomni. actor_rollout_ref.ref.veomni. "
                           "actor_rollout_ref.actor.engine. actor_rollout_ref.ref.engine. critic.veomni."),
    (reasons.PRECISION, "actor_rollout_ref.actor.fsdp_config.qat. actor_rollout_ref.actor.megatron.qat. "
                        "actor_rollout_ref.actor.qat."),
    (Nothing("a matter of memory, without effect on what is learned"), "actor_rollout_ref.model.fused_kernel_options."),
    (reasons.TILED, "actor_rollout_ref.model.tiled_mlp. critic.model.tiled_mlp."),
    (reasons.MTP, "actor_rollout_ref.model.mtp."),
    (reasons.MODEL_CONFIG, "critic.model.override_config. reward_model.model.override_config."),
    (Missing("arguments of another engine than vLLM"), f"{_ROLLOUT}.engine_kwargs."),
    (Nothing("weights reach engines as runtime.ray.weights says"), f"{_ROLLOUT}.checkpoint_engine."),
    (Missing("metrics are in the run folder and in loggers (log.to)", off=(None, False)),
     f"{_ROLLOUT}.prometheus. {_ROLLOUT}.trace."),
    (reasons.AGENT, f"{_ROLLOUT}.agent.custom_async_server. {_ROLLOUT}.custom."),
    (reasons.DISTILLED, "distillation."),
    (reasons.PROFILED, "actor_rollout_ref.actor.profiler. actor_rollout_ref.ref.profiler. critic.profiler. "
                       f"reward_model.profiler. {_ROLLOUT}.profiler. global_profiler. trainer.npu_profile. profiler."),
    (_QUEUE, "transfer_queue. trainer.v1. skip."),
    (_RAY, "ray_kwargs. ray_init."),
    (reasons.STORED, "actor_rollout_ref.actor.checkpoint. critic.checkpoint."),
    (reasons.DETAIL, "algorithm.pf_ppo. reward_model.rollout. reward.reward_model.rollout. reward.reward_manager. "
                     "reward_manager. reward_model.sandbox_fusion. reward.sandbox_fusion. sandbox_fusion. "
                     f"{_ROLLOUT}.multi_turn. async_training. rollout."),
    (Missing("further arguments of a reward manager are those of a reward function of yours"),
     "reward_model.reward_kwargs. reward.reward_kwargs. reward_model."),
)  # fmt: skip
FAMILIES: tuple[tuple[str, Fate], ...] = tuple((names, fate) for fate, names in _BY_FATE)
"""Beginnings of keys, and what becomes of all those keys."""
