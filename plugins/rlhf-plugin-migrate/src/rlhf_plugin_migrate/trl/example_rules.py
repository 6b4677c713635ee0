"""Rules that TRL's scripts for SFT and DPO share: the machine, the rows of an update, their length, held-out sets."""

from __future__ import annotations

from ..table.outcome import Outcome
from ..table.source import SourceOptions
from .common.model_adapter import set_adapter
from .common.optimization import set_optimization
from .common.shared_rules import (
    global_batch,
    names_of_sets,
    set_computing,
    set_data,
    set_duration,
    set_logs,
    set_saves,
)

_BATCH = ("per_device_train_batch_size", "gradient_accumulation_steps")
_MICRO_BATCH = "train.max_tokens_per_micro_batch"
_OUR_LENGTH = 2048
_FILES = (".jsonl", ".json", ".csv", ".parquet")


def set_run(source: SourceOptions, out: Outcome, processes: int, *, sequences_per_row: int) -> None:
    """Set everything that does not depend on what a row is.

    Args:
        processes: number of processes that accelerate starts.
        sequences_per_row: 2 for pairs of answers.
    """
    out.apply_plain_entries()
    if not source.given("model_name_or_path"):
        out.warnings.append("model_name_or_path is missing: the configuration needs model.path")
    if processes == 1 and not source.given("deepspeed", "fsdp"):
        out.warnings.append("one process is assumed; --processes says how many accelerate starts")
    backend = "deepspeed" if processes > 1 else "torch"
    out.set("backend.name", backend)
    if processes > 1:
        out.set("runtime.name", "ray")
        out.set("runtime.ray.ranks.policy", processes)
    set_computing(source, out, backend)
    set_adapter(source, out, backend=backend)
    _set_sizes(source, out, processes, sequences_per_row)
    set_duration(source, out, updates=1)
    set_saves(source, out, updates=1)
    set_data(source, out)
    set_optimization(source, out)
    _set_evaluation(source, out)
    set_logs(source, out)


def _set_sizes(source: SourceOptions, out: Outcome, processes: int, sequences_per_row: int) -> None:
    """Set the rows of an update, the longest sequence, and the packed tokens of a micro-batch."""
    out.set(
        "train.batch_size",
        global_batch(source, processes),
        *_BATCH,
        comment=f"with {processes} processes" if processes > 1 else "",
    )
    length = source.value("max_length")
    if isinstance(length, int):
        out.set("data.max_length", length, "max_length")
        out.set("data.on_too_long", "truncate", "max_length", "truncation_mode")
    else:
        length = _OUR_LENGTH
        out.nothing("truncation_mode", "nothing is cut")
        out.differs(
            "max_length", f"rows of more than data.max_length = {length} tokens are refused"
        )
    if source.text("truncation_mode") != "keep_start":
        out.missing("truncation_mode", "a longer sequence loses its end, not its beginning")
    size = source.whole(_BATCH[0])
    factors = " x ".join(str(part) for part in (size, sequences_per_row, length) if part != 1)
    comment = f"{factors}; a matter of memory, the gradient does not depend on it"
    tokens = size * sequences_per_row * length
    out.set(_MICRO_BATCH, tokens, _BATCH[0], comment=comment)


def _set_evaluation(source: SourceOptions, out: Outcome) -> None:
    keys = ("eval_strategy", "eval_steps", "eval_on_start", "dataset_test_split")
    strategy = source.text("eval_strategy")
    sets = list(names_of_sets(source))
    if strategy == "no" or not sets:
        out.nothing(keys, "TRL evaluates only with eval_strategy")
        return
    if any(name.endswith(_FILES) for name in sets):
        out.missing(
            "eval_strategy",
            f"a file has no split {source.text('dataset_test_split')}; name held-out rows in eval.data, or hold a "
            "share of the rows out with eval.fraction",
        )
        out.nothing("dataset_test_split", "see eval_strategy")
    else:
        out.set("eval.data", sets, "eval_strategy")
        out.set("eval.split", source.text("dataset_test_split"), "dataset_test_split")
    if strategy == "steps":
        # Without a number of its own the Trainer evaluates as often as it logs.
        steps = source.number("eval_steps" if source.given("eval_steps") else "logging_steps")
        out.set("eval.every", max(round(steps), 1), "eval_steps", "eval_strategy")
    else:
        out.nothing("eval_steps", f"eval_strategy is {strategy}")
    out.copy("eval.at_start", "eval_on_start")
