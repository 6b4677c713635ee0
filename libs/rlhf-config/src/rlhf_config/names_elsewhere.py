"""Names that options have in other frameworks, for the error of whoever writes one of them here.

Only names that every reader of an example has at hand are listed; ``rlhf migrate`` reads whole configurations. A ``*``
stands for the name of a component.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

_PATHS_OF_NAMES = {
    "model_name_or_path model_name pretrain": "model.path",
    "processing_class tokenizer": "model.tokenizer",
    "train_dataset dataset_name dataset train_files train_data": "data.train",
    "eval_dataset val_files val_data": "eval.data",
    "dataset_text_field": "data.text_key",
    "dataset_train_split": "data.split",
    "max_prompt_length": "data.max_prompt_tokens",
    "max_seq_length max_seq_len seq_len": "data.max_length rollout.max_length",
    "reward_funcs": "reward.use",
    "num_generations n_samples group_size rollouts_per_example": "rollout.n_samples_per_prompt",
    "max_completion_length max_generate_length max_completion_tokens max_response_length": "rollout.max_new_tokens",
    "num_iterations ppo_epochs num_ppo_epochs update_epochs_per_batch": "train.inner_epochs",
    "per_device_train_batch_size gradient_accumulation_steps": "train.batch_size",
    "num_train_epochs max_epochs total_epochs": "train.epochs",
    "max_steps total_training_steps max_training_steps": "train.steps",
    "learning_rate": "actor.*.lr",
    "adam_beta1 adam_beta2": "actor.*.betas",
    "lr_scheduler_type": "actor.lr_schedule",
    "warmup_steps": "actor.warmup_ratio",
    "num_cycles": "actor.cosine.num_cycles",
    "max_grad_norm": "actor.max_norm",
    "sync_ref_model ref_model_sync_steps": "ref.sync_every",
    "ref_model_mixup_alpha": "ref.sync_alpha",
    "use_peft peft_config": "actor.adapter",
    "lora_r lora_rank": "actor.*.rank actor.adapter",
    "lora_alpha": "actor.*.alpha actor.adapter",
    "beta": "algo.kl.coef preference.*.beta",
    "epsilon": "algo.loss.*.clip_low",
    "epsilon_high": "algo.loss.*.clip_high",
    "scale_rewards advantage_estimator": "algo.advantage.estimator",
    "loss_type": "algo.loss.policy preference.loss train.loss",
    "use_vllm": "engine.name",
    "output_dir": "output",
    "report_to": "log.to",
    "save_steps": "checkpoint.every",
    "save_total_limit": "checkpoint.keep",
    "eval_steps": "eval.every",
    "resume_from_checkpoint": "resume.checkpoint",
}
PATHS = {name: paths.split() for names, paths in _PATHS_OF_NAMES.items() for name in names.split()}
"""Name elsewhere -> paths here, of which a command has one."""


def paths_here(name: str, known: Sequence[str]) -> list[str]:
    """Return the options, among those of a command, that are what another framework calls ``name``."""
    for pattern in PATHS.get(name, ()):
        if found := [path for path in known if fnmatchcase(path, pattern)]:
            return found[:3]
    return []
