# The flat names of 0.10.1 and before: a mixture of experts with LoRA in 4 bits on conversations, and pre-training.
torchrun --nproc_per_node 4 --nnodes 2 -m openrlhf.cli.train_sft \
   --max_len 2048 --dataset $DATA --apply_chat_template --input_key messages --multiturn \
   --train_batch_size 128 --micro_train_batch_size 4 --max_samples 500000 --pretrain $MODEL \
   --save_path ./checkpoint/lora --save_steps 500 --logging_steps 1 --eval_steps 100 --eval_dataset $DATA \
   --zero_stage 3 --max_epochs 1 --bf16 --flash_attn --gradient_checkpointing --learning_rate 5e-6 \
   --load_in_4bit --lora_rank 64 --lora_alpha 64 --lora_dropout 0.05 --target_modules q_proj v_proj --aux_loss_coef 0.001

torchrun --nproc_per_node 8 -m openrlhf.cli.train_sft \
   --pretrain $MODEL --dataset $DATA --input_key question --pretrain_mode --packing_samples --ring_attn_size 2 \
   --max_len 32768 --train_batch_size 64 --micro_train_batch_size 1 --learning_rate 2e-5 --max_epochs 3
