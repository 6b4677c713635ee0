"""Keys below ``trainer`` that verl's programs share: how long, checkpoints, validation, loggers."""

from __future__ import annotations

from ...table.entries import Missing, Nothing, Rule, To
from ...table.kinds import SWITCH, TEXT, WHOLE
from .key_table import Line

_LOGS = Rule("log.to", "log.wandb.project", "log.wandb.name")
_KEEP = Rule("checkpoint.keep")
_SAMPLES = Nothing("samples of each step and evaluation are in samples.jsonl: rlhf show")


# fmt: off
def trainer_lines(*, epochs: int, project: str, run: str, seed: int | None) -> tuple[Line, ...]:
    """Return the keys with the defaults of one program."""
    return (
        ("trainer.total_epochs", WHOLE, epochs, Rule("train.epochs")),
        ("trainer.total_training_steps", WHOLE, None, Rule("train.steps")),
        ("trainer.project_name", TEXT, project, _LOGS),
        ("trainer.experiment_name", TEXT, run, _LOGS),
        ("trainer.logger", TEXT, ["console", "wandb"], _LOGS),
        ("trainer.log_val_generations", WHOLE, 0, _SAMPLES),
        ("trainer.rollout_data_dir", TEXT, None, _SAMPLES),
        ("trainer.validation_data_dir", TEXT, None, _SAMPLES),
        ("trainer.save_freq", WHOLE, -1, Rule("checkpoint.every")),
        ("trainer.test_freq", WHOLE, -1, Rule("eval.every")),
        ("trainer.val_before_train", SWITCH, True, Rule("eval.at_start")),
        ("trainer.val_only", SWITCH, False, Missing("rlhf eval answers held-out prompts without training")),
        ("trainer.resume_mode", TEXT, "auto", Rule("resume.checkpoint")),
        ("trainer.resume_from_path", TEXT, None, Rule("resume.checkpoint")),
        ("trainer.default_local_dir", TEXT, "checkpoints/${trainer.project_name}/${trainer.experiment_name}",
         Rule("output")),
        ("trainer.default_hdfs_dir", TEXT, None, Missing("nothing is copied to HDFS", off=(None,))),
        ("trainer.max_actor_ckpt_to_keep trainer.max_ckpt_to_keep", WHOLE, None, _KEEP),
        ("trainer.max_critic_ckpt_to_keep", WHOLE, None, Nothing("the critic is in the same checkpoints")),
        ("trainer.del_local_ckpt_after_load", SWITCH, False, Missing("a checkpoint stays after a resume")),
        ("trainer.esi_redundant_time", WHOLE, 0, Missing("checkpoints are by steps or minutes", off=(0,))),
        ("trainer.seed", WHOLE, seed, To("seed", if_given=True)),
    )
# fmt: on
