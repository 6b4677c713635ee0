# Facts of train_dapo_ray_hybrid_engine.sh, with the correction as 0.11.2 spells it.
set -x

python3 -m openrlhf.cli.train_ppo_ray \
   --ref.num_nodes 1 --ref.num_gpus_per_node 8 --actor.num_nodes 1 --actor.num_gpus_per_node 8 \
   --vllm.num_engines 8 --train.colocate_all --vllm.gpu_memory_utilization 0.6 \
   --algo.kl.init_coef 1e-3 --algo.kl.use_loss --algo.kl.estimator k3 \
   --algo.advantage.gamma 1.0 --algo.advantage.estimator group_norm \
   --algo.dynamic_filtering_enable --algo.dynamic_filtering_range 0 1 \
   --actor.eps_clip_low_high 0.2 0.27 \
   --actor.model_name_or_path $MODEL \
   --reward.remote_url $REWARD \
   --reward.overlong_buffer_len 512 --reward.overlong_penalty_factor 0.5 \
   --ckpt.save_steps 20 \
   --train.micro_batch_size 8 --train.batch_size 128 \
   --rollout.micro_batch_size 16 --rollout.batch_size 128 --rollout.n_samples_per_prompt 8 \
   --train.max_epochs 1 --data.max_len 2048 --data.max_samples 20000 \
   --ds.zero_stage 3 --ds.param_dtype bf16 --actor.adam.lr 5e-7 \
   --data.prompt_dataset $DATA --data.input_key messages --data.label_key answer --data.apply_chat_template \
   --actor.gradient_checkpointing_enable --ds.packing_samples \
   --algo.advantage.is_correction_level token --algo.advantage.is_correction_mode clip
