"""Rules of evaluation, and of the best checkpoint by it."""

from __future__ import annotations

from ...table.outcome import Outcome
from ...table.source import SourceOptions

_EVAL = ("dataset", "steps", "split", "temperature", "n_samples_per_prompt")


def set_evaluation(source: SourceOptions, out: Outcome) -> None:
    """Set the held-out sets. OpenRLHF evaluates only with a set and a number of steps."""
    every = source.whole("eval.steps")
    if not source.given("eval.dataset") or every <= 0:
        why = "OpenRLHF evaluates only with both --eval.dataset and --eval.steps"
        out.nothing((*(f"eval.{name}" for name in _EVAL), "ckpt.best_metric_key"), why)
        return
    sets = [name.strip() for name in source.text("eval.dataset").split(",")]
    out.set("eval.data", [f"{set_name(name)}={name}" for name in sets], "eval.dataset")
    out.set("eval.every", every, "eval.steps")
    out.set("eval.split", source.text("eval.split"), "eval.split")
    out.set("eval.temperatures", [source.number("eval.temperature")], "eval.temperature")
    out.copy("eval.n_samples", "eval.n_samples_per_prompt")
    out.set("eval.at_start", False, "eval.steps")
    out.differs("eval.steps", "there is an evaluation after the last step, too")
    out.differs("eval.dataset", "metrics are by set and not by the column datasource")
    _set_best(source, out, sets[0])


def _set_best(source: SourceOptions, out: Outcome, first: str) -> None:
    """Set the metric of the best checkpoint. OpenRLHF's pass1 is the mean reward of the samples."""
    flag = "ckpt.best_metric_key"
    key = source.text(flag)
    temperature = source.number("eval.temperature")
    metric = f"eval/{set_name(first)}/T{temperature:g}/reward"
    if key == "none":
        out.set("checkpoint.best_metric", "none", flag)
        return
    out.set("checkpoint.best_metric", metric, flag, comment="OpenRLHF's pass1 is the mean reward")
    if key and not key.endswith("_pass1"):
        out.differs(
            flag,
            f"{key} has no counterpart of this name; rlhf show or metrics.jsonl lists the metrics",
        )


def set_name(path: str) -> str:
    """Return a short name for a held-out set: the last part of its path, without an ending."""
    last = path.partition("@")[0].rstrip("/").rpartition("/")[2]
    return last.partition(".")[0] or "held_out"
