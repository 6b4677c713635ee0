"""Columns beside those of a form that say something too: ``system``, a row's own system message, ``history``, what was
said before, and ``tools``."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from rlhf_core.outside.json_reader import BrokenJson, parse_json

from ..chat.template.pieces import function_of
from ..rows import RowProblem
from ..source import Row, Source, Unreadable, is_list
from .answers import HISTORY, INSTRUCTION, PROMPT, earlier, has_history, has_prompt
from .chats import MESSAGES, USER, chat_column, has_system, is_chat, with_system
from .pairs import CHOSEN, REJECTED

TOOLS = "tools"
LOOKED_AT = 10
"""First rows of a set that are looked at."""

log = logging.getLogger(__name__)


def with_history_column(row: Row, keys: Mapping[str, str]) -> Row:
    """Return a row whose prompt begins with the column ``history``: pairs of a question and its answer, as in
    LLaMA-Factory's Alpaca form, or chat messages. Alpaca's own forms read it themselves.

    Args:
        keys: options that name columns -> our own columns, of the row's form.

    Raises:
        RowProblem: the history is neither, or the row has a whole conversation.
    """
    if not has_history(row) or isinstance(row.get(INSTRUCTION), str):
        return row
    if not has_prompt(row) or (MESSAGES in keys.values() and chat_column(row) is not None):
        if chat_column(row) is None and not is_chat(row.get(CHOSEN)):
            return row
        raise RowProblem(
            "two conversations",
            f"the row has a whole conversation, and the column {HISTORY!r} has what was said before; put it into the "
            "conversation, or leave it out",
        )
    prompt = row[PROMPT]
    messages = [{"role": USER, "content": prompt}] if isinstance(prompt, str) else prompt
    return {**row, PROMPT: [*earlier(row[HISTORY]), *messages]}


def with_system_column(row: Row, keys: Mapping[str, str]) -> Row:
    """Return a row whose system message stands before what it belongs to: the conversation, the prompt, or both answers
    that are whole conversations.

    A prompt that is text becomes a message of the user, since a system message makes it a chat.

    Args:
        keys: options that name columns -> our own columns, of the row's form.

    Raises:
        RowProblem: there is another system message.
    """
    if not has_system(row):
        return row
    if MESSAGES in keys.values():
        return (
            {**row, MESSAGES: with_system(row, _copied(row[MESSAGES]))}
            if is_chat(row.get(MESSAGES))
            else row
        )
    prompt = row.get(PROMPT)
    if isinstance(prompt, str) and not is_chat(row.get(CHOSEN)):
        prompt = [{"role": USER, "content": prompt}]
    if PROMPT in keys.values() and is_chat(prompt):
        return {**row, PROMPT: with_system(row, _copied(prompt))}
    whole = {
        name: with_system(row, _copied(row[name]))
        for name in (CHOSEN, REJECTED)
        if is_chat(row.get(name))
    }
    return {**row, **whole}


def warn_of_tools(source: Source, option: str) -> None:
    """Warn that the first rows of prompts have tools that the policy will not see.

    Args:
        option: option that names the source.
    """
    for index, row in enumerate(islice(source.scan(), LOOKED_AT)):
        if not isinstance(row, Unreadable) and is_chat(row.get(PROMPT)) and _has_tools(row):
            log.warning(
                "%s: rows have tools in the column %r (from %s on), and the policy reads none of them: tools "
                "of prompts are offered by an environment or an agent; without one write them into a message",
                option,
                TOOLS,
                source.where(index),
            )
            return


def _copied(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [dict(message) for message in messages]


def _has_tools(row: Row) -> bool:
    """Return whether a row has schemas of tools, as a list or as JSON text."""
    value = row.get(TOOLS)
    if isinstance(value, str):
        try:
            value = parse_json(value)
        except BrokenJson:
            return False
    return is_list(value) and any(function_of(tool).get("name") for tool in value)
