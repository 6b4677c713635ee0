"""Rules of how long a run is, of its folder, checkpoints, validation and loggers."""

from __future__ import annotations

from ...table.outcome import Outcome
from ...table.source import SourceOptions

_LOGGERS = ("wandb", "mlflow", "trackio")
"""Loggers that have the same name here."""
_WITHOUT_ONE = ("console", "tensorboard", "file")
_LOCAL = "trainer.default_local_dir"


def names_of(source: SourceOptions, key: str) -> list[str]:
    """Return the texts of a key that takes one or a list of them."""
    value = source.value(key)
    if isinstance(value, list):
        return [str(name) for name in value]
    return [str(value)] if value is not None and value != "" else []


def set_duration(source: SourceOptions, out: Outcome) -> None:
    """Set the number of steps or epochs; verl's steps are ours."""
    steps = source.value("trainer.total_training_steps")
    if steps is not None:
        out.set("train.steps", steps, "trainer.total_training_steps")
        out.nothing("trainer.total_epochs", "total_training_steps ends the run")
    else:
        out.copy("train.epochs", "trainer.total_epochs")
        out.nothing("trainer.total_training_steps", "the epochs say how long")


def set_files(source: SourceOptions, out: Outcome) -> None:
    """Set the run folder, checkpoints and what a run continues from."""
    project, name = source.text("trainer.project_name"), source.text("trainer.experiment_name")
    folder = source.text(_LOCAL)
    folder = folder.replace("${trainer.project_name}", project).replace(
        "${trainer.experiment_name}", name
    )
    out.set("output", folder.rstrip("/"), _LOCAL)
    if source.given(_LOCAL):
        out.differs(_LOCAL, "it is the run folder, with checkpoints/ and, at the end, model/")
    every = source.whole("trainer.save_freq")
    if every > 0:
        out.set("checkpoint.every", every, "trainer.save_freq")
    else:
        out.nothing(
            "trainer.save_freq",
            "checkpoints are by time (checkpoint.every_minutes), so that a run can go on",
        )
    keep = "trainer.max_actor_ckpt_to_keep"
    if source.value(keep) is not None:
        out.copy("checkpoint.keep", keep)
    elif every > 0:
        out.differs(keep, "the newest checkpoint.keep = 2 are kept; verl keeps all")
    else:
        out.nothing(keep, "verl keeps all that it writes")
    _set_resume(source, out)


def _set_resume(source: SourceOptions, out: Outcome) -> None:
    mode, path = "trainer.resume_mode", "trainer.resume_from_path"
    if source.text(mode) == "auto":
        comment = "goes on if the run folder has a checkpoint of ours; verl's cannot be read"
        out.set("resume.checkpoint", "auto", mode, comment=comment)
    elif source.text(mode) == "disable":
        out.nothing(mode, "a new run, as here")
    else:
        out.missing(
            mode,
            "checkpoints of verl cannot be read; give the model of one, exported, as model.path",
        )
    if source.value(path) in (None, "", False):
        out.nothing(path, "unset")
    else:
        out.missing(path, "checkpoints of verl cannot be read")


def set_evaluation(source: SourceOptions, out: Outcome) -> None:
    """Set when held-out rows are looked at."""
    every, start = "trainer.test_freq", "trainer.val_before_train"
    if source.whole(every) > 0:
        out.copy("eval.every", every)
    else:
        out.differs(every, "there is an evaluation at the end; verl makes none")
    out.copy("eval.at_start", start)


def set_logs(source: SourceOptions, out: Outcome, name: str = "trainer.experiment_name") -> None:
    """Set the loggers, with the names of project and run.

    Args:
        name: key of the run's name.
    """
    key, project = "trainer.logger", "trainer.project_name"
    names = names_of(source, key)
    ours = [one for one in names if one in _LOGGERS]
    if ours:
        out.set("log.to", list(ours), key)
    else:
        out.nothing(
            key, "progress is on the terminal, and TensorBoard's events are in the run folder"
        )
    if others := [one for one in names if one not in (*_LOGGERS, *_WITHOUT_ONE)]:
        out.missing(
            key,
            f"there is no logger for {', '.join(others)}; TensorBoard's events are in the run folder",
        )
    for option, path in ((project, "project"), (name, "name")):
        if "wandb" in ours or "trackio" in ours:
            out.set(
                f"log.{'wandb' if 'wandb' in ours else 'trackio'}.{path}",
                source.text(option),
                option,
            )
        elif "mlflow" in ours:
            section = "log.mlflow.experiment_name" if path == "project" else "log.mlflow.run_name"
            out.set(section, source.text(option), option)
        else:
            out.nothing(option, "the run folder has its name")
