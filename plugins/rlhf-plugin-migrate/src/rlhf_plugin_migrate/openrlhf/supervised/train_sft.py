"""Migration of ``train_sft`` to ``rlhf sft``."""

from __future__ import annotations

from collections.abc import Sequence

from ...table.outcome import Outcome
from ...table.source import SourceOptions
from ..common.command_line import FLAGS, read_flags
from ..common.sets import set_template
from .shared_rules import set_run

_INPUT, _OUTPUT = "data.input_key", "data.output_key"
_MULTITURN, _CHAT = "data.multiturn", "data.apply_chat_template"


def migrate(words: Sequence[str], processes: int | None) -> Outcome:
    """Return the configuration that the flags of ``train_sft`` mean.

    Args:
        processes: number of processes that the launcher starts; None: it does not say.
    """
    source = read_flags(words, FLAGS["train_sft"])
    out = Outcome(source, command="sft")
    set_run(source, out, processes, sequences_per_row=1)
    if source.flag("model.pretrain_mode_enable"):
        _set_text(source, out)
    elif source.flag(_CHAT) and (source.flag(_MULTITURN) or not source.given(_OUTPUT)):
        _set_conversations(source, out)
    else:
        _set_answers(source, out)
    return out


def _set_text(source: SourceOptions, out: Outcome) -> None:
    """Set plain text, of which every token is learned."""
    flag = "model.pretrain_mode_enable"
    out.set("data.text_key", source.text(_INPUT), _INPUT, flag)
    out.differs(
        flag,
        "a text that is too long is cut into pieces that are all learned, and ends with an end of sequence; OpenRLHF "
        "learns its beginning, without an end",
    )
    out.nothing(
        (_OUTPUT, _MULTITURN, _CHAT, "data.input_template"),
        "OpenRLHF does not use it on plain text",
    )


def _set_conversations(source: SourceOptions, out: Outcome) -> None:
    """Set a column with whole conversations, of which all turns of the assistant are learned or the last one."""
    out.set("data.messages_key", source.text(_INPUT), _INPUT)
    out.nothing(_CHAT, "messages are always rendered with the chat template")
    set_template(source, out, _INPUT)
    out.set("data.learn", "all" if source.flag(_MULTITURN) else "last", _MULTITURN)
    if source.given(_OUTPUT):
        out.missing(
            _OUTPUT,
            "the whole conversation has to be in one column; with --data.multiturn OpenRLHF joins the two",
        )
    else:
        out.nothing(_OUTPUT, "the answers are in the conversation")


def _set_answers(source: SourceOptions, out: Outcome) -> None:
    """Set a prompt with its answer."""
    if source.flag(_CHAT):
        out.set("data.chat", True, _CHAT)
    if not set_template(source, out, _INPUT):
        out.set("data.prompt_key", source.text(_INPUT), _INPUT)
    if source.given(_OUTPUT):
        out.set("data.response_key", source.text(_OUTPUT), _OUTPUT)
        _note_form(source, out)
    else:
        out.warnings.append(
            "--data.output_key is missing, without which OpenRLHF drops every row: set data.response_key"
        )
    out.nothing(_MULTITURN, "there is one answer; OpenRLHF needs --data.apply_chat_template for it")


def _note_form(source: SourceOptions, out: Outcome) -> None:
    if source.flag(_CHAT):
        out.differs(
            _OUTPUT,
            "the column has text; messages of an answer go behind the prompt's into one column (data.messages_key)",
        )
    else:
        out.differs(
            _OUTPUT,
            "the end of sequence stands right behind the answer; OpenRLHF puts a blank before it",
        )
