# Options of examples/sft/gsm8k/run_qwen2_5_0_5b_fsdp.sh of verl 1dda039 (August 2026), Apache-2.0.
torchrun --nproc_per_node=8 -m verl.trainer.sft_trainer \
    data.train_files=$HOME/data/gsm8k/train.parquet data.val_files=$HOME/data/gsm8k/test.parquet \
    data.messages_key=messages data.micro_batch_size_per_gpu=4 optim.lr=1e-4 engine=fsdp \
    engine.ulysses_sequence_parallel_size=1 model.path=Qwen/Qwen2.5-0.5B-Instruct model.use_remove_padding=true \
    trainer.default_local_dir=$2 trainer.project_name=gsm8k-sft trainer.experiment_name=gsm8k-sft-qwen2_5_0_5b \
    'trainer.logger=["console","wandb"]' trainer.total_epochs=1
