# Facts of OpenRLHF's train_sft.sh and README, with its flags as 0.11.2 spells them; the launcher names 8 GPUs.
set -x

read -r -d '' training_commands <<EOF
openrlhf.cli.train_sft \
   --data.max_len 4096 \
   --data.dataset ${DATA} \
   --data.input_key question \
   --data.output_key answer \
   --data.input_template $'User: {}\nAssistant: ' \
   --train.batch_size 256 \
   --train.micro_batch_size 2 \
   --data.max_samples 500000 \
   --model.model_name_or_path ${MODEL} \
   --ckpt.output_dir ./checkpoint/llama3-8b-sft \
   --ckpt.save_steps -1 \
   --logger.logging_steps 1 \
   --eval.steps -1 \
   --ds.zero_stage 2 \
   --train.max_epochs 1 \
   --ds.packing_samples \
   --ds.param_dtype bf16 \
   --adam.lr 5e-6 \
   --model.gradient_checkpointing_enable \
   --logger.wandb.key {wandb_token}
EOF

deepspeed --num_gpus 8 --module $training_commands
