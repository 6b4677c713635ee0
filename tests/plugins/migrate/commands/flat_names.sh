# The flat names of 0.10.1 and before, with servers for the reward.
deepspeed_args="--zero_stage 2 --bf16 --flash_attn"
python -m openrlhf.cli.train_ppo_ray \
   --pretrain $MODEL --remote_rm_url http://127.0.0.1:5000/get_reward,http://127.0.0.1:5001/get_reward \
   --actor_num_nodes 1 --actor_num_gpus_per_node 2 --ref_num_nodes 1 --ref_num_gpus_per_node 2 \
   --vllm_num_engines 2 --vllm_gpu_memory_utilization 0.5 --colocate_all_models \
   --advantage_estimator rloo --n_samples_per_prompt 4 --init_kl_coef 0.05 \
   --micro_train_batch_size 4 --train_batch_size 64 --micro_rollout_batch_size 4 --rollout_batch_size 64 \
   --max_len 1024 --max_new_tokens 256 --max_epochs 1 --num_episodes 2 \
   --actor_learning_rate 1e-6 --l2 0.01 --lr_scheduler constant_with_warmup --max_norm 0.5 \
   --prompt_data $DATA --input_key question --label_key answer --input_template $'User: {}\nAssistant: ' \
   --enable_vllm_is_correction --vllm_is_truncated_threshold 0.8 2.0 --vllm_is_correction_type seq-mask-tis \
   --gradient_checkpointing --packing_samples $deepspeed_args --perf --save_path exp/flat
