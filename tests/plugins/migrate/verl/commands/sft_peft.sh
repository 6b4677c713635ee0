# Options of examples/sft/gsm8k/run_qwen_05_peft.sh of verl b178a3c (January 2026), Apache-2.0.
torchrun --nproc_per_node=8 -m verl.trainer.fsdp_sft_trainer \
    data.train_files=$HOME/data/gsm8k/train.parquet data.val_files=$HOME/data/gsm8k/test.parquet \
    data.prompt_key=extra_info data.response_key=extra_info optim.lr=1e-4 'data.prompt_dict_keys=[question]' \
    '+data.response_dict_keys=[answer]' data.micro_batch_size_per_gpu=4 \
    model.partial_pretrain=Qwen/Qwen2.5-0.5B-Instruct trainer.default_local_dir=$2 \
    trainer.project_name=gsm8k-sft trainer.experiment_name=gsm8k-sft-qwen-2.5-0.5b-instruct \
    trainer.logger=console trainer.total_epochs=1 model.lora_rank=32 model.lora_alpha=16 \
    model.target_modules=all-linear
