# Options and branches of examples/grpo_trainer/run_qwen3_8b_fsdp.sh of verl 1dda039 (August 2026), Apache-2.0.
set -xeuo pipefail
DEVICE=${DEVICE:-$(python3 -c 'import torch_npu' 2>/dev/null && echo npu || echo gpu)}
INFER_BACKEND=${INFER_BACKEND:-vllm}
MACHINE=${MACHINE:-}
NGPUS_PER_NODE=${NGPUS_PER_NODE:-}
train_batch_size=${TRAIN_BATCH_SIZE:-1024}
max_prompt_length=${MAX_PROMPT_LENGTH:-1024}
max_response_length=${MAX_RESPONSE_LENGTH:-2048}
rollout_tp=${ROLLOUT_TP:-}
EXTRA=()
case "${DEVICE}" in
    gpu)
        actor_offload=False
        rollout_tp=${rollout_tp:-2}
        case "${MACHINE}" in
            gb200)
                NGPUS_PER_NODE=${NGPUS_PER_NODE:-4}
                EXTRA+=(actor_rollout_ref.rollout.enforce_eager=True)
                ;;
            *)
                NGPUS_PER_NODE=${NGPUS_PER_NODE:-8}
                ;;
        esac
        n_trainer_devices=${NGPUS_PER_NODE}
        ;;
    npu)
        n_trainer_devices=8
        actor_offload=True
        train_batch_size=16
        max_prompt_length=$((1024 * 2))
        max_response_length=$((1024 * 32))
        ;;
esac
DATA=(
    algorithm.adv_estimator=grpo
    data.train_files="['$HOME/data/gsm8k/train.parquet', '$HOME/data/math/train.parquet']"
    data.val_files="['$HOME/data/gsm8k/test.parquet', '$HOME/data/math/test.parquet']"
    data.train_batch_size=${train_batch_size}
    data.max_prompt_length=${max_prompt_length}
    data.max_response_length=${max_response_length}
    data.filter_overlong_prompts=True
)
ACTOR=(
    actor_rollout_ref.model.path="${MODEL_PATH:-Qwen/Qwen3-8B}"
    actor_rollout_ref.actor.optim.lr=${ACTOR_LR:-1e-6}
    actor_rollout_ref.actor.ppo_mini_batch_size=${PPO_MINI_BATCH_SIZE:-256}
    actor_rollout_ref.actor.use_dynamic_bsz=True
    actor_rollout_ref.actor.ppo_max_token_len_per_gpu=$(((max_prompt_length + max_response_length) * 8))
    actor_rollout_ref.actor.use_kl_loss=True
    actor_rollout_ref.actor.fsdp_config.param_offload=${actor_offload}
    actor_rollout_ref.rollout.name=${INFER_BACKEND}
    actor_rollout_ref.rollout.tensor_model_parallel_size=${rollout_tp}
    actor_rollout_ref.rollout.n=${ROLLOUT_N:-5}
)
LAUNCH=(python3)
RAY=(ray_kwargs.ray_init.runtime_env.py_executable=null)
if [ "${VERL_USE_UV:-1}" != 0 ] && [ "${DEVICE:-gpu}" = gpu ]; then
    LAUNCH=(uv run --frozen --extra "${INFER_BACKEND}" --extra fsdp python3)
    RAY=(ray_kwargs.ray_init.runtime_env.py_executable="uv -v run --frozen --extra ${INFER_BACKEND}")
fi
"${LAUNCH[@]}" -m verl.trainer.main_ppo \
    "${DATA[@]}" \
    "${ACTOR[@]}" \
    trainer.logger='["console","wandb"]' \
    trainer.n_gpus_per_node=${n_trainer_devices} \
    trainer.experiment_name=qwen3_8b_$(date +%Y%m%d_%H%M) \
    "${EXTRA[@]}" \
    "${RAY[@]}" \
    "$@"
