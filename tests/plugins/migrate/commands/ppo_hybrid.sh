# Facts of OpenRLHF's README and train_ppo_ray_hybrid_engine.sh: PPO with a critic and a local reward model, all roles and
# engines on the same 8 GPUs. The README still has the two lengths of 0.9.
set -x

ray start --head --node-ip-address 0.0.0.0 --num-gpus 8

ray job submit --address="http://127.0.0.1:8265" \
   --runtime-env-json='{"working_dir": "/openrlhf", "env_vars": {"WANDB_API_KEY": "a-secret"}}' \
   -- python3 -m openrlhf.cli.train_ppo_ray \
   --ref.num_nodes 1 --ref.num_gpus_per_node 8 \
   --reward.num_nodes 1 --reward.num_gpus_per_node 8 \
   --critic.num_nodes 1 --critic.num_gpus_per_node 8 \
   --actor.num_nodes 1 --actor.num_gpus_per_node 8 \
   --vllm.num_engines 4 --vllm.tensor_parallel_size 2 \
   --train.colocate_all \
   --vllm.gpu_memory_utilization 0.5 \
   --actor.model_name_or_path ${MODEL} \
   --reward.model_name_or_path ${REWARD_MODEL} \
   --ckpt.output_dir ./final/rlhf \
   --ckpt.path ./ckpt/rlhf \
   --ckpt.save_hf \
   --train.batch_size 128 \
   --rollout.batch_size 1024 \
   --train.dynamic_batch_enable \
   --train.max_tokens_per_gpu 16384 \
   --rollout.n_samples_per_prompt 1 \
   --train.max_epochs 1 \
   --prompt_max_len 1024 \
   --data.max_samples 100000 \
   --generate_max_len 1024 \
   --ds.zero_stage 3 --ds.param_dtype bf16 \
   --actor.adam.lr 5e-7 --critic.adam.lr 9e-6 \
   --algo.kl.init_coef 0.01 \
   --data.prompt_dataset ${DATA} \
   --data.input_key messages \
   --data.apply_chat_template \
   --reward.normalize_enable \
   --actor.gradient_checkpointing_enable \
   --ds.packing_samples \
   --vllm.sync_backend nccl --vllm.enforce_eager --vllm.enable_sleep --ds.enable_sleep \
   --algo.advantage.is_correction_enable \
   --logger.wandb.key {wandb_token}

# Enable tensor parallelism for DeepSpeed
#    --ds.tensor_parallel_size 2 \
