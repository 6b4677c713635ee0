#!/bin/bash
# Facts of train_reinforce_baseline_ray_agent_async.sh: flags in arrays, an agent, asynchronous training.

MODEL_PATH="$MODEL"
AGENT_FUNC_PATH="$AGENT"

CKPT_ARGS=(
   --actor.model_name_or_path ${MODEL_PATH}
   # --reward.model_name_or_path ${REWARD_MODEL}
   --ckpt.load_enable
   --ckpt.output_dir exp/agent
   --ckpt.max_num 3
   --ckpt.save_steps 10
)

ROLLOUT_ARGS=(
   --train.agent_func_path ${AGENT_FUNC_PATH}
   --data.prompt_dataset ${DATA}
   --data.input_key prompt
   --data.label_key answer
   --data.max_len 74240
   --rollout.max_new_tokens 64000
   --data.apply_chat_template
   --ds.packing_samples
   --rollout.batch_size 128
   --rollout.n_samples_per_prompt 8
   --train.batch_size 1024
   --algo.dynamic_filtering_enable
   --train.dynamic_batch_enable
   --train.max_tokens_per_gpu 16192
   --rollout.max_tokens_per_gpu 32768
)

ENGINE_ARGS=(
   --train.async_enable --train.partial_rollout_enable
   --ref.num_nodes 1 --ref.num_gpus_per_node 4
   --actor.num_nodes 1 --actor.num_gpus_per_node 4
   --vllm.num_engines 2 --vllm.tensor_parallel_size 2 --vllm.gpu_memory_utilization 0.95
   --train.colocate_all
   --ds.zero_stage 3 --actor.gradient_checkpointing_enable
   --ds.ring_attn_size 2 --ds.ring_attn_head_stride 2
)
ENGINE_ARGS+=(--ds.param_dtype bf16)

OPTIMIZER_ARGS=(
   --algo.advantage.estimator reinforce_baseline
   --actor.adam.lr 5e-7
   --actor.entropy_coef 0.0
   --algo.kl.init_coef 1e-5 --algo.kl.use_loss --algo.kl.estimator k2
   --algo.advantage.is_correction_enable --algo.advantage.is_correction_type icepop
)

LOG_ARGS=(--logger.tensorboard_dir exp/agent/runs --logger.logging_steps 1 --eval.steps -1)

ray job submit --address="http://127.0.0.1:8265" \
   -- python3 -m openrlhf.cli.train_ppo_ray \
   ${CKPT_ARGS[@]} ${ROLLOUT_ARGS[@]} "${ENGINE_ARGS[@]}" ${OPTIMIZER_ARGS[@]} ${LOG_ARGS[@]}
