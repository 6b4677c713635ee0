"""Rules that TRL's scripts share: the machine, the sets, how long to train, checkpoints and logs."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ...table.outcome import Outcome
from ...table.source import SourceOptions

_LOGGERS = ("wandb", "trackio", "mlflow")
"""Loggers that have the same name here."""
_WITHOUT_ONE = ("tensorboard", "none", "all")


def set_computing(source: SourceOptions, out: Outcome, backend: str) -> None:
    """Set the model's revision, the weights' type and how passes are computed."""
    revision, path = source.text("model_revision"), source.text("model_name_or_path")
    is_folder = path.startswith(("/", ".", "~")) or path.count("/") > 1
    if revision in ("", "main") or is_folder or not path:
        out.nothing("model_revision", "the newest commit, or the model is a folder")
    else:
        keys = ("model_name_or_path", "model_revision")
        out.set("model.path", f"{path}@{revision}", *keys)
    dtype = source.text("dtype")
    known = {"bfloat16": "bfloat16", "bf16": "bfloat16", "float32": "float32", "fp32": "float32"}
    out.set("model.dtype", known.get(dtype, "bfloat16"), "dtype")
    if dtype not in known:
        out.differs("dtype", f"there is no {dtype}: weights are float32 or bfloat16")
    out.set(
        f"backend.{backend}.gradient_checkpointing",
        source.flag("gradient_checkpointing"),
        "gradient_checkpointing",
    )
    out.copy(f"backend.{backend}.compile", "torch_compile")
    out.copy(f"backend.{backend}.deterministic", "full_determinism")


def global_batch(source: SourceOptions, processes: int) -> int:
    """Return the number of rows of an optimizer step; those of GRPO are completions."""
    per_step = source.count("per_device_train_batch_size") * processes
    return per_step * source.count("gradient_accumulation_steps")


def names_of_sets(source: SourceOptions) -> Iterator[str]:
    """Yield the names of the sets."""
    mixture = source.value("datasets")
    if isinstance(mixture, list):
        for part in mixture:
            if isinstance(part, dict) and "path" in part:
                name = part.get("name")
                yield f"{part['path']}:{name}" if name else str(part["path"])
    elif source.given("dataset_name"):
        name = source.text("dataset_config")
        yield source.text("dataset_name") + (f":{name}" if name else "")


def set_data(source: SourceOptions, out: Outcome) -> None:
    """Set the training sets."""
    sets = list(names_of_sets(source))
    key = "datasets" if source.given("datasets") else "dataset_name"
    if sets:
        out.set("data.train", list(sets), key, "dataset_config")
    else:
        out.warnings.append("dataset_name is missing: the configuration needs data.train")
        out.nothing("dataset_config", "there is no dataset_name")
    if source.given("datasets"):
        out.differs(
            "datasets",
            "path and name of each set are kept; data.split holds for all, and single files are named in data.train",
        )
        out.nothing("dataset_name", "TRL reads datasets instead")
        out.nothing("dataset_config", "TRL reads datasets instead")


def set_duration(source: SourceOptions, out: Outcome, updates: int) -> None:
    """Set how long to train.

    Args:
        updates: number of TRL's steps, which are updates, in a step here.
    """
    steps = source.whole("max_steps")
    if steps > 0:
        out.set(
            "train.steps",
            math.ceil(steps / updates),
            "max_steps",
            comment="rollout batches; TRL counts updates" if updates > 1 else "",
        )
        out.nothing("num_train_epochs", "max_steps overrides it")
        return
    epochs = source.number("num_train_epochs")
    out.set("train.epochs", max(math.ceil(epochs), 1), "num_train_epochs")
    out.nothing("max_steps", "the epochs say how long to train")
    if epochs != math.ceil(epochs):
        out.differs("num_train_epochs", "epochs are whole here")


def set_saves(source: SourceOptions, out: Outcome, updates: int) -> None:
    """Set the checkpoints; the argument is that of ``set_duration``."""
    strategy = source.text("save_strategy")
    if strategy == "steps":
        every = max(round(source.number("save_steps") / updates), 1)
        out.set("checkpoint.every", every, "save_steps", "save_strategy")
    else:
        out.nothing("save_steps", f"save_strategy is {strategy}")
        out.nothing("save_strategy", "a checkpoint is saved at the end")
        if strategy not in ("no", "end"):
            out.missing("save_strategy", "checkpoints are counted in steps: checkpoint.every")


def set_logs(source: SourceOptions, out: Outcome) -> None:
    """Set the loggers."""
    names = source.texts("report_to")
    if ours := [name for name in names if name in _LOGGERS]:
        out.set("log.to", ours, "report_to")
    if other := [name for name in names if name not in (*_LOGGERS, *_WITHOUT_ONE)]:
        out.missing(
            "report_to",
            f"there is no logger for {', '.join(other)}; TensorBoard's events are in the run folder",
        )
    out.set("log.tensorboard", True, "report_to")


def set_reference(source: SourceOptions, out: Outcome, updates: int, *, is_used: bool) -> None:
    """Set how the reference follows the policy.

    Args:
        updates: number of TRL's steps, which are updates, in a step here.
        is_used: False: the loss looks at no reference.
    """
    details = ("ref_model_mixup_alpha", "ref_model_sync_steps")
    if not source.flag("sync_ref_model"):
        out.nothing(("sync_ref_model", *details), "the reference is the model at the start")
        return
    if not is_used:
        out.nothing(("sync_ref_model", *details), "the loss looks at no reference")
        return
    alpha, steps = source.number(details[0]), source.whole(details[1])
    if source.flag("use_peft") and alpha < 1.0:
        out.missing(
            "sync_ref_model", "adapters are not mixed; ref.sync_every alone resets the reference"
        )
        out.nothing(details, "see sync_ref_model")
        return
    out.set("ref.sync_every", max(round(steps / updates), 1), "sync_ref_model", details[1])
    if steps % updates:
        out.differs(
            details[1],
            f"a step here has {updates} updates, and the reference moves after whole steps",
        )
    out.set("ref.sync_alpha", alpha, details[0])
