# Facts of OpenRLHF's train_dpo.sh and README, once as they are, once with its other losses and LoRA.
deepspeed --num_gpus=8 --module openrlhf.cli.train_dpo \
   --ckpt.output_dir ./checkpoint/llama3-8b-dpo --ckpt.save_steps -1 --logger.logging_steps 1 --eval.steps -1 \
   --train.batch_size 256 --train.micro_batch_size 1 --model.model_name_or_path $MODEL --ds.param_dtype bf16 \
   --train.max_epochs 1 --data.max_len 8192 --ds.zero_stage 3 --adam.lr 5e-7 --model.beta 0.1 \
   --data.dataset $PAIRS --data.apply_chat_template --data.chosen_key chosen --data.rejected_key rejected \
   --ds.attn_implementation flash_attention_2 --ckpt.load_enable --model.gradient_checkpointing_enable \
   --ds.packing_samples

deepspeed --num_gpus=8 --module openrlhf.cli.train_dpo \
   --pretrain $MODEL --dataset $PAIRS --prompt_key prompt --input_template $'Q: {}\nA: ' --max_len 1024 \
   --train_batch_size 64 --micro_train_batch_size 2 --learning_rate 5e-6 --beta 0.05 --label_smoothing 0.1 \
   --nll_loss_coef 0.2 --ref_offload --ref_pretrain $MODEL --lora_rank 16 --zero_stage 2 --bf16

deepspeed --num_gpus=8 --module openrlhf.cli.train_dpo \
   --pretrain $MODEL --dataset $PAIRS --prompt_key prompt --train_batch_size 64 --beta 0.2 --ipo --zero_stage 2
