# Options of examples/reinforce_plus_plus_trainer/run_qwen2-7b_math_rf_baseline.sh of verl b178a3c (January 2026), Apache-2.0.
python3 -m verl.trainer.main_ppo \
    algorithm.adv_estimator=reinforce_plus_plus_baseline \
    "data.train_files=['$HOME/data/gsm8k/train.parquet', '$HOME/data/math/train.parquet']" \
    "data.val_files=['$HOME/data/gsm8k/test.parquet', '$HOME/data/math/test.parquet']" \
    data.train_batch_size=1024 data.max_prompt_length=1024 data.max_response_length=1024 \
    data.filter_overlong_prompts=True data.truncation=error actor_rollout_ref.model.path=Qwen/Qwen2-7B-Instruct \
    actor_rollout_ref.actor.optim.lr=3e-6 actor_rollout_ref.model.use_remove_padding=True \
    actor_rollout_ref.actor.ppo_mini_batch_size=1024 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=16 \
    actor_rollout_ref.actor.use_kl_loss=False actor_rollout_ref.actor.kl_loss_coef=0.001 \
    actor_rollout_ref.actor.kl_loss_type=mse actor_rollout_ref.actor.entropy_coeff=0 \
    actor_rollout_ref.model.enable_gradient_checkpointing=True \
    actor_rollout_ref.actor.fsdp_config.param_offload=False \
    actor_rollout_ref.actor.fsdp_config.optimizer_offload=False \
    actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=16 \
    actor_rollout_ref.rollout.tensor_model_parallel_size=2 actor_rollout_ref.rollout.name=vllm \
    actor_rollout_ref.rollout.gpu_memory_utilization=0.6 actor_rollout_ref.rollout.n=8 \
    actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=16 \
    actor_rollout_ref.ref.fsdp_config.param_offload=True algorithm.use_kl_in_reward=True trainer.critic_warmup=0 \
    'trainer.logger=["console","wandb"]' trainer.project_name=verl_grpo_example_gsm8k \
    trainer.experiment_name=qwen2_7b_function_rm trainer.n_gpus_per_node=16 trainer.nnodes=1 \
    trainer.save_freq=-1 trainer.test_freq=5 trainer.total_epochs=15
