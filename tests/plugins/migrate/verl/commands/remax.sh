# Options of examples/remax_trainer/run_qwen2.5-3b_seq_balance.sh of verl b178a3c (January 2026), Apache-2.0.
python3 -m verl.trainer.main_ppo \
    algorithm.adv_estimator=remax data.train_files=$HOME/data/gsm8k/train.parquet \
    data.val_files=$HOME/data/gsm8k/test.parquet data.train_batch_size=512 data.max_prompt_length=512 \
    data.max_response_length=1024 data.filter_overlong_prompts=True data.truncation=error \
    actor_rollout_ref.model.path=Qwen/Qwen2.5-3B-Instruct actor_rollout_ref.actor.optim.lr=1e-6 \
    actor_rollout_ref.model.use_remove_padding=True actor_rollout_ref.actor.ppo_mini_batch_size=128 \
    actor_rollout_ref.actor.use_dynamic_bsz=True actor_rollout_ref.actor.ppo_max_token_len_per_gpu=30000 \
    actor_rollout_ref.actor.use_kl_loss=False actor_rollout_ref.model.enable_gradient_checkpointing=True \
    actor_rollout_ref.actor.fsdp_config.param_offload=False \
    actor_rollout_ref.actor.fsdp_config.optimizer_offload=False \
    actor_rollout_ref.rollout.tensor_model_parallel_size=2 actor_rollout_ref.rollout.name=vllm \
    actor_rollout_ref.rollout.gpu_memory_utilization=0.8 actor_rollout_ref.rollout.n=4 \
    actor_rollout_ref.ref.fsdp_config.param_offload=True algorithm.use_kl_in_reward=True algorithm.kl_penalty=kl \
    algorithm.kl_ctrl.kl_coef=0.001 trainer.critic_warmup=0 'trainer.logger=["console","wandb"]' \
    trainer.project_name=verl_remax_example_gsm8k trainer.experiment_name=qwen2.5_3b_function_rm_kl1e-3 \
    trainer.val_before_train=False trainer.n_gpus_per_node=8 trainer.nnodes=1 trainer.save_freq=-1 \
    trainer.test_freq=5 trainer.total_epochs=5
