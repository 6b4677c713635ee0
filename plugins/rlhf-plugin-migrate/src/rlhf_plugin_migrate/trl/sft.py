"""Migration of a YAML file for TRL's SFT to ``rlhf sft``."""

from __future__ import annotations

from ..table.outcome import Outcome
from ..table.source import SourceOptions
from .example_rules import set_run


def migrate(source: SourceOptions, processes: int, adapter: str) -> Outcome:
    """Return the configuration that a file for SFT means.

    Args:
        processes: number of processes that accelerate starts.
        adapter: not used: there is no reward function.
    """
    out = Outcome(source, command="sft")
    set_run(source, out, processes, sequences_per_row=1)
    _set_columns(source, out)
    smoothing = source.number("label_smoothing_factor")
    if source.text("loss_type") == "dft":
        out.nothing("label_smoothing_factor", "TRL smooths no labels with dft")
    elif smoothing:
        out.set("train.label_smoothing", smoothing, "label_smoothing_factor")
    else:
        out.nothing("label_smoothing_factor", "0 smooths nothing")
    if source.flag("packing"):
        out.differs(
            "packing",
            "rows are packed without padding, and an update has train.batch_size of them; with packing TRL counts "
            "packed rows of max_length tokens, so raise train.batch_size by the rows that fit into one",
        )
    else:
        out.nothing(
            "packing", "rows are packed without padding at any rate, and counted one by one"
        )
    return out


def _set_columns(source: SourceOptions, out: Outcome) -> None:
    """Set the columns. TRL goes by the names that it finds in the data, which is not read here."""
    text, completion, assistant = (
        "dataset_text_field", "completion_only_loss", "assistant_only_loss",
    )  # fmt: skip
    others = {text, completion, assistant}
    if source.value(completion) is not None:
        out.set("data.response_key", "completion", completion)
        if not source.flag(completion):
            out.missing(completion, "the tokens of prompts are not learned beside an answer")
        form = "prompt and completion"
        others.remove(completion)
    elif source.given(text) and not source.given(assistant):
        out.set("data.text_key", source.text(text), text)
        form = "plain text"
        others.remove(text)
    else:
        out.set("data.messages_key", "messages", assistant)
        if not source.flag(assistant):
            out.differs(
                assistant,
                "the assistant's turns are learned; TRL also learns those of the user without it, which "
                "--data.roles assistant user system tool does but for the marks before messages",
            )
        form = "conversations in the column messages"
        others.remove(assistant)
    out.nothing(others, f"rows are taken for {form}")
    out.warnings.append(
        f"TRL goes by the columns of the data, which is not read here; {form} are assumed. Otherwise set "
        "data.messages_key, data.text_key, or data.response_key with data.prompt_key"
    )
