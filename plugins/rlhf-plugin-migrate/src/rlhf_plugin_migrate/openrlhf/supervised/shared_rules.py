"""Rules that the three programs share: ranks, optimizer, lengths, held-out sets and the columns of pairs."""

from __future__ import annotations

from ...table.outcome import Outcome
from ...table.source import SourceOptions
from ..common.machine import set_backend
from ..common.model_adapter import set_adapter
from ..common.optimizer import set_optimizer, set_schedule
from ..common.records import set_files, set_logs
from ..common.sets import names_of_sets, note_unread_sets, set_template, set_training_sets

_FILES = (".jsonl", ".json", ".csv", ".parquet")
_MICRO_BATCH = "train.max_tokens_per_micro_batch"


def set_run(
    source: SourceOptions,
    out: Outcome,
    processes: int | None,
    *,
    sequences_per_row: int,
    role: str = "policy",
) -> None:
    """Set everything that does not depend on what a row is.

    Args:
        processes: number of processes that the launcher starts; None: it does not say.
        sequences_per_row: 2 for pairs of answers.
        role: name of the role that the command trains.
    """
    out.apply_plain_entries()
    if not source.given("model.model_name_or_path"):
        out.warnings.append(
            "--model.model_name_or_path is missing: the configuration needs model.path"
        )
    _set_ranks(out, processes, role)
    set_backend(source, out)
    set_training_sets(source, out, "data.dataset", "data.dataset_probs", float("inf"))
    _set_lengths(source, out, sequences_per_row)
    set_optimizer(source, out, "actor", "")
    set_schedule(source, out, "actor", "")
    set_adapter(source, out, ("actor",))
    _set_evaluation(source, out)
    set_files(source, out)
    set_logs(source, out)


def _set_ranks(out: Outcome, processes: int | None, role: str) -> None:
    out.set("runtime.name", "ray")
    out.set(f"runtime.ray.ranks.{role}", processes or 1)
    if processes is None:
        out.warnings.append(
            "the launcher does not say how many processes it starts, and 1 is assumed; --processes N says how many, or "
            f"runtime.ray.ranks.{role} in the configuration"
        )


def _set_lengths(source: SourceOptions, out: Outcome, sequences_per_row: int) -> None:
    """Set the longest sequence and the packed tokens of a micro-batch, on which memory depends and no result."""
    flag = "data.max_len"
    length, size = source.whole(flag), source.whole("train.micro_batch_size")
    out.set("data.max_length", length, flag)
    out.set("data.on_too_long", "truncate", flag)
    out.set("data.on_bad_row", "skip", flag, comment="a prompt that leaves no room for an answer")
    out.differs(
        flag, "a longer row loses its end; OpenRLHF also puts an end of sequence at the cut"
    )
    factors = " x ".join(str(part) for part in (size, sequences_per_row, length) if part != 1)
    comment = f"{factors}; a matter of memory, the gradient does not depend on it"
    tokens = size * sequences_per_row * length
    out.set(_MICRO_BATCH, tokens, "train.micro_batch_size", flag, comment=comment)


def _set_evaluation(source: SourceOptions, out: Outcome) -> None:
    sets = names_of_sets(source, "eval.dataset")
    if not sets:
        out.nothing(
            ("eval.dataset", "eval.steps", "eval.split"),
            "OpenRLHF evaluates only with --eval.dataset",
        )
        return
    out.set("eval.data", list(sets), "eval.dataset")
    note_unread_sets(out, "eval.dataset", sets)
    out.set("eval.at_start", False, "eval.steps")
    every = source.whole("eval.steps")
    if every > 0:
        out.set("eval.every", every, "eval.steps")
    elif source.whole("train.max_epochs") > 1:
        out.differs(
            "eval.steps",
            "-1 is once an epoch in OpenRLHF; evaluations are counted in updates (eval.every), and this one is at the "
            "end only",
        )
    if all(name.endswith(_FILES) for name in sets):
        out.nothing("eval.split", "files have no splits")
    else:
        out.set("eval.split", source.text("eval.split"), "eval.split")


def set_pairs(source: SourceOptions, out: Outcome) -> None:
    """Set the columns of a prompt and of two answers to it."""
    flag = "data.prompt_key"
    if source.flag("data.apply_chat_template"):
        out.nothing(
            "data.apply_chat_template", "messages are always rendered with the chat template"
        )
        set_template(source, out, flag)
        if source.given(flag):
            out.set(flag, source.text(flag), flag)
        else:
            out.nothing(flag, "both answers are whole conversations with one beginning")
    elif not source.given(flag):
        set_template(source, out, flag)
        out.warnings.append(
            "without --data.prompt_key and --data.apply_chat_template OpenRLHF learns whole texts; here an answer "
            "stands behind a prompt, so rows need a column data.prompt_key"
        )
    elif not set_template(source, out, flag):
        out.set(flag, source.text(flag), flag)
