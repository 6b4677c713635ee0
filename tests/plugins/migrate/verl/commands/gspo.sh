# Options of examples/gspo_trainer/test_gspo_3b_math.sh of verl b178a3c (January 2026), Apache-2.0.
python3 -m verl.trainer.main_ppo \
    algorithm.adv_estimator=grpo actor_rollout_ref.actor.policy_loss.loss_mode=gspo \
    "data.train_files=['/data/gsm8k/train.parquet']" "data.val_files=['/data/gsm8k/test.parquet']" \
    data.shuffle=true data.prompt_key=prompt data.truncation=error data.filter_overlong_prompts=true \
    data.return_raw_chat=True data.train_batch_size=512 data.max_prompt_length=2048 \
    data.max_response_length=8192 actor_rollout_ref.rollout.n=16 algorithm.use_kl_in_reward=false \
    algorithm.kl_ctrl.kl_coef=0.0 actor_rollout_ref.actor.use_kl_loss=false \
    actor_rollout_ref.actor.kl_loss_coef=0.0 actor_rollout_ref.actor.clip_ratio_low=0.0003 \
    actor_rollout_ref.actor.clip_ratio_high=0.0004 actor_rollout_ref.model.use_remove_padding=true \
    actor_rollout_ref.actor.use_dynamic_bsz=true actor_rollout_ref.ref.log_prob_use_dynamic_bsz=true \
    actor_rollout_ref.rollout.log_prob_use_dynamic_bsz=true \
    actor_rollout_ref.actor.ppo_max_token_len_per_gpu=20480 \
    actor_rollout_ref.ref.log_prob_max_token_len_per_gpu=30720 \
    actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu=30720 actor_rollout_ref.rollout.name=vllm \
    actor_rollout_ref.rollout.mode=async actor_rollout_ref.model.path=Qwen/Qwen2.5-3B-Instruct \
    actor_rollout_ref.model.enable_gradient_checkpointing=true actor_rollout_ref.actor.optim.lr=1e-6 \
    actor_rollout_ref.actor.optim.lr_warmup_steps_ratio=0.05 actor_rollout_ref.actor.optim.weight_decay=0.1 \
    actor_rollout_ref.actor.ppo_mini_batch_size=128 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8 \
    actor_rollout_ref.actor.fsdp_config.param_offload=true \
    actor_rollout_ref.actor.fsdp_config.optimizer_offload=true actor_rollout_ref.actor.entropy_coeff=0 \
    actor_rollout_ref.actor.grad_clip=1.0 actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-mean \
    actor_rollout_ref.actor.ulysses_sequence_parallel_size=1 \
    actor_rollout_ref.rollout.gpu_memory_utilization=0.8 actor_rollout_ref.rollout.tensor_model_parallel_size=1 \
    actor_rollout_ref.rollout.enable_chunked_prefill=true actor_rollout_ref.rollout.max_num_batched_tokens=10240 \
    actor_rollout_ref.rollout.temperature=1.0 actor_rollout_ref.rollout.top_p=1.0 \
    actor_rollout_ref.rollout.top_k=-1 actor_rollout_ref.rollout.val_kwargs.temperature=1.0 \
    actor_rollout_ref.rollout.val_kwargs.top_p=0.7 actor_rollout_ref.rollout.val_kwargs.top_k=-1 \
    actor_rollout_ref.rollout.val_kwargs.do_sample=true actor_rollout_ref.rollout.val_kwargs.n=1 \
    actor_rollout_ref.ref.fsdp_config.param_offload=true actor_rollout_ref.ref.ulysses_sequence_parallel_size=1 \
    actor_rollout_ref.actor.entropy_checkpointing=true reward_model.reward_manager=dapo \
    +reward_model.reward_kwargs.overlong_buffer_cfg.enable=false \
    +reward_model.reward_kwargs.overlong_buffer_cfg.len=4096 \
    +reward_model.reward_kwargs.overlong_buffer_cfg.penalty_factor=1.0 \
    +reward_model.reward_kwargs.overlong_buffer_cfg.log=false +reward_model.reward_kwargs.max_resp_len=8192 \
    'trainer.logger=["console","wandb"]' trainer.project_name=RL-GSPO \
    "trainer.experiment_name=gspo-epslow-0.0003-epshigh-0.0004-$(basename $MODEL_PATH)-RL" \
    trainer.n_gpus_per_node=8 "trainer.nnodes=${SLURM_JOB_NUM_NODES}" trainer.val_before_train=false \
    trainer.test_freq=10 trainer.save_freq=10 trainer.total_epochs=10 trainer.total_training_steps=500 \
    "trainer.default_local_dir=/rl/checkpoints/experimental/4b/gspo/gspo-epslow-0.0003-epshigh-0.0004-$(basename $MODEL_PATH)-RL" \
    trainer.resume_mode=auto trainer.log_val_generations=2
