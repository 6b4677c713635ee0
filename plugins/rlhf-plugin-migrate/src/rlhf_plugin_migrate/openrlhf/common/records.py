"""Rules of the run folder, checkpoints and logs."""

from __future__ import annotations

from ...table.outcome import Outcome
from ...table.source import SourceOptions

_WANDB = {"project": "project", "org": "entity", "group": "group", "run_name": "name"}
"""Flag of OpenRLHF below ``logger.wandb`` -> our option below ``log.wandb``."""


def set_files(source: SourceOptions, out: Outcome) -> None:
    """Set the run folder and the checkpoints."""
    folder = "ckpt.output_dir"
    if source.given(folder):
        out.set("output", source.text(folder).rstrip("/"), folder)
        out.differs(
            folder, "it is the run folder: the model is in model/, beside checkpoints and metrics"
        )
    if source.given("ckpt.path"):
        out.differs("ckpt.path", "checkpoints are in checkpoints/ of the run folder")
    every = source.whole("ckpt.save_steps")
    out.set("checkpoint.every", max(every, 0), "ckpt.save_steps")
    if source.flag("ckpt.save_hf"):
        out.set("checkpoint.export", True, "ckpt.save_hf")
        out.differs("ckpt.save_hf", "a Transformers folder is written once, at the end")
    if source.flag("ckpt.load_enable"):
        out.set("resume.checkpoint", "auto", "ckpt.load_enable")
        out.differs("ckpt.load_enable", "checkpoints of OpenRLHF cannot be read")


def set_logs(source: SourceOptions, out: Outcome) -> None:
    """Set what is recorded, and where it is copied to."""
    if source.whole("logger.logging_steps") != 1:
        out.differs("logger.logging_steps", "every step is recorded")
    else:
        out.nothing("logger.logging_steps", "every step is recorded")
    if source.given("logger.tensorboard_dir"):
        out.set("log.tensorboard", True, "logger.tensorboard_dir")
        out.differs("logger.tensorboard_dir", "events are in the run folder")
    _set_wandb(source, out)


def _set_wandb(source: SourceOptions, out: Outcome) -> None:
    """Set Weights & Biases, whose key has no place in a configuration. OpenRLHF uses it when a key is given."""
    key = "logger.wandb.key"
    if not source.given(key):
        out.nothing(
            (f"logger.wandb.{name}" for name in _WANDB), f"OpenRLHF reads it only with --{key}"
        )
        return
    out.set("log.to", ["wandb"], key)
    out.differs(key, "the key is read from WANDB_API_KEY, or from where wandb login put it")
    for name, ours in _WANDB.items():
        flag = f"logger.wandb.{name}"
        if source.text(flag):
            out.set(f"log.wandb.{ours}", source.text(flag), flag)
        else:
            out.nothing(flag, "unset")
