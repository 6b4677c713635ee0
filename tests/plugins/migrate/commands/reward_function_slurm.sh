#!/bin/bash
#SBATCH -N 2
# Facts of train_ppo_ray_slurm.sh and train_ppo_with_reward_fn.sh: the command within bash -c within srun, roles apart.

nodes=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
nodes_array=( $nodes )
node_1=${nodes_array[0]}

for ((i = 1; i < 2; i++)); do
    srun --nodes=1 -w "${nodes_array[$i]}" bash -c "ray start --address $node_1:6379 --block" &>> job.log &
done

srun --overlap --nodes=1 --ntasks=1 -w "$node_1" bash -c \
"pip install ray[default] \
&& /root/.local/bin/ray job submit --address=http://localhost:8265 \
    --runtime-env-json='{\"working_dir\": \"/openrlhf\"}' \
    -- python3 -m openrlhf.cli.train_ppo_ray \
    --ref.num_nodes 1 --ref.num_gpus_per_node 4 \
    --critic.num_nodes 1 --critic.num_gpus_per_node 4 \
    --actor.num_nodes 1 --actor.num_gpus_per_node 4 \
    --vllm.num_engines 4 --vllm.tensor_parallel_size 2 \
    --train.colocate_critic_reward --train.colocate_actor_ref \
    --actor.model_name_or_path $MODEL \
    --reward.remote_url $REWARD \
    --train.micro_batch_size 8 --train.batch_size 128 \
    --rollout.micro_batch_size 16 --rollout.batch_size 1024 \
    --data.max_samples 100000 --train.max_epochs 1 --data.max_len 2048 \
    --ds.zero_stage 3 --ds.param_dtype bf16 \
    --actor.adam.lr 5e-7 --critic.adam.lr 9e-6 --algo.kl.init_coef 0.01 \
    --data.prompt_dataset $DATA --data.input_key messages --data.apply_chat_template \
    --reward.normalize_enable --ds.adam_offload --ds.packing_samples --vllm.sync_backend nccl \
    --ds.attn_implementation flash_attention_2 --actor.gradient_checkpointing_enable" &>> job.log
