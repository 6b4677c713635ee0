# Facts of train_vlm_math_hybrid_engine.sh: a model that reads images, without a reference.
python3 -m openrlhf.cli.train_ppo_ray \
   --ref.num_nodes 1 --ref.num_gpus_per_node 4 --actor.num_nodes 1 --actor.num_gpus_per_node 4 \
   --vllm.num_engines 4 --train.colocate_all --vllm.gpu_memory_utilization 0.7 \
   --algo.kl.init_coef 0 --algo.kl.use_loss --algo.kl.estimator k2 \
   --algo.advantage.estimator reinforce_baseline \
   --actor.model_name_or_path $MODEL --reward.remote_url $REWARD \
   --train.batch_size 1024 --rollout.batch_size 128 --rollout.n_samples_per_prompt 8 --train.num_episodes 100 \
   --data.max_len 4096 --rollout.max_new_tokens 2048 --ds.zero_stage 3 --actor.adam.lr 2e-6 \
   --data.prompt_dataset $DATA --data.input_key prompt --data.label_key answer --data.apply_chat_template \
   --data.image_key images --data.max_images_per_prompt 1 --actor.freeze_visual_encoder \
   --ds.attn_implementation eager
