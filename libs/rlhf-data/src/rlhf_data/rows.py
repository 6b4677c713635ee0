"""Prompts of data rows, and the problems that a row can have."""

from __future__ import annotations

import string
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlhf_config.prompts import PromptForm
from rlhf_core.batch.task import Message
from rlhf_core.errors import DataError
from rlhf_core.outside.json_reader import parse_json

from .advice import near_prompts, other_rows, way_to_text
from .chat.template.contents import text_of_part
from .chat.template.problem import REFUSED, TemplateProblem
from .source import Row, code_of, filled_columns, hint_of_printed, printed_messages

Prompt = str | tuple[Message, ...]
"""Plain text, or chat messages to be rendered."""

MISSING_COLUMN = "missing column"
"""Kind of the problem of a row that has not the column which an option names."""
SHOWN = 5
"""Number of rows of one kind of problem that are named, unless all are wanted."""


class RowProblem(ValueError):
    """Problem of one row.

    Args:
        kind: a few words that are the same for all rows with this sort of problem.
        reason: the expected value, the actual value, and the fix.
    """

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(kind, reason)
        self.kind = kind
        self.reason = reason


def no_column(row: Row, name: str, way: str) -> RowProblem:
    """Return the problem of a row without a column that an option names; ``way`` says what to do."""
    names = ", ".join(filled_columns(row)) or "none"
    return RowProblem(MISSING_COLUMN, f"expected a column {name!r}; the row has {names}. {way}")


def problem_of(error: DataError) -> RowProblem:
    """Return the problem of a row whose messages the chat template does not show."""
    return RowProblem(error.kind if isinstance(error, TemplateProblem) else REFUSED, str(error))


@dataclass(frozen=True, slots=True)
class BadRow:
    """Row that cannot be used."""

    where: str
    """Place of the row, ``file:line`` or ``set:row``."""
    kind: str
    """Sort of the problem, in a few words."""
    reason: str
    """Expected value, actual value, and the fix."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptFormat:
    """Options of ``data.*`` by which prompts are made of rows.

    Raises:
        DataError: the template is malformed, or the system prompt has no place in a plain-text prompt.
    """

    prompt_key: str = "prompt"
    template: str | None = None
    system_prompt: str | None = None
    chat: bool = False

    def __post_init__(self) -> None:
        if self.template is not None:
            _check_template(self.template)
        if self.template is not None and self.system_prompt is not None and not self.chat:
            raise DataError(
                "data.system_prompt needs a chat prompt, but data.template makes plain text. Add --data.chat.",
                code="data/system-prompt-without-chat",
            )

    @classmethod
    def of(cls, data: PromptForm) -> PromptFormat:
        """Return the format that a run's options describe."""
        return cls(
            prompt_key=data.prompt_key,
            template=data.template,
            system_prompt=data.system_prompt,
            chat=data.chat,
        )

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns that prompts are made of."""
        return (self.prompt_key,) if self.template is None else _fields(self.template)

    def prompt(self, row: Row) -> Prompt:
        """Return the row's prompt.

        Raises:
            RowProblem: a column is missing, has the wrong type, or its text cannot be used.
        """
        value = self._fill(row) if self.template is not None else _column(row, self.prompt_key)
        if isinstance(value, str):
            check_text(value, "the prompt")
            check_not_printed(value, "the prompt")
            if not self.chat:
                if self.system_prompt is not None:
                    raise RowProblem(
                        "no place for the system prompt",
                        "the prompt is plain text, which has no place for data.system_prompt. Add --data.chat",
                    )
                return value
            value = [{"role": "user", "content": value}]
        elif not isinstance(value, Sequence) or isinstance(value, bytes):
            raise RowProblem(
                "wrong type",
                f"expected text or a list of chat messages in column {self.prompt_key!r}, got {shown_value(value)}"
                f"{way_to_text(value)}",
            )
        return with_system_prompt(checked_messages(value), self.system_prompt)

    def _fill(self, row: Row) -> str:
        assert self.template is not None
        for name in _fields(self.template):
            _column(row, name)
        try:
            return self.template.format_map(row)
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise RowProblem(
                "template", f"data.template cannot be filled: {type(error).__name__}: {error}"
            ) from error


def with_system_prompt(
    messages: tuple[Message, ...], system_prompt: str | None
) -> tuple[Message, ...]:
    """Return the messages with the system prompt before them, if there is one.

    Raises:
        RowProblem: the messages already have a system prompt.
    """
    if system_prompt is None:
        return messages
    if messages[0]["role"] == "system":
        raise RowProblem(
            "two system prompts",
            "the messages start with a system message already; leave out --data.system_prompt",
        )
    return ({"role": "system", "content": system_prompt}, *messages)


def check_text(text: str, what: str) -> None:
    """Refuse text that no tokenizer or file can carry.

    Raises:
        RowProblem: the text is empty or blank, or has a NUL or a lone surrogate.
    """
    if not text.strip():
        raise RowProblem("empty", f"{what} is empty")
    if "\0" in text:
        raise RowProblem("NUL character", f"{what} has a NUL at character {text.index(chr(0)) + 1}")
    if not text.isascii():
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise RowProblem(
                "lone surrogate",
                f"{what} has half of a surrogate pair (U+{ord(text[error.start]):04X}) at character "
                f"{error.start + 1}; no text encoding can hold it",
            ) from error


def check_not_printed(text: str, what: str) -> None:
    """Refuse messages that were printed: a model would read their quotes and braces.

    Raises:
        RowProblem: the text is such messages.
    """
    if printed_messages(text):
        raise RowProblem(
            "printed messages",
            f"{what} has messages as Python prints them, which are no JSON; write them with json.dumps, or as JSON "
            "Lines or Parquet",
        )


def read_messages(value: Sequence[Any]) -> tuple[Message, ...]:
    """Return chat messages without their empty fields; tables fill up missing fields with None.

    Raises:
        RowProblem: the list is empty, or an entry is no message.
    """
    if not value:
        raise RowProblem("empty", "the list of messages is empty")
    return tuple(_checked_message(entry, number) for number, entry in enumerate(value, start=1))


def checked_messages(value: Sequence[Any]) -> tuple[Message, ...]:
    """Return the chat messages of a prompt, as ``read_messages`` does.

    Raises:
        RowProblem: the list is empty, an entry is no message, or the last message is the assistant's.
    """
    messages = read_messages(value)
    if messages[-1]["role"] == "assistant":
        raise RowProblem(
            "ends with the assistant",
            "the last message is the assistant's, but the policy has to write this message; leave it out",
        )
    return messages


def bad_row_error(
    bad: Sequence[BadRow], total: int, option: str, listed_by: str | None
) -> DataError:
    """Return the error for ``on_bad_row = fail``: the number of bad rows by kind, the first of each, and the fix.

    Args:
        listed_by: the command that lists all bad rows; None: there is none.
    """
    kinds = Counter(row.kind for row in bad)
    lines = [f"{option}: {len(bad)} of {total} rows cannot be used ({_counted(kinds)})"]
    lines += lines_of(bad, f"; list them with: {listed_by}" if listed_by else "")
    if len(bad) < total:
        lines.append("  Repair these rows, or leave them out with --data.on_bad_row skip.")
    code = code_of(bad[0].kind) if len(kinds) == 1 else "data/bad-rows"
    return DataError("\n".join(lines), code=code)


def lines_of(bad: Sequence[BadRow], way: str = "") -> list[str]:
    """Return a line for each of the first rows of each kind, and one with the number of the others, which ends with the
    way to list them."""
    first = first_of_each_kind(bad)
    more = [f"  and {len(bad) - len(first)} more{way}"] if len(bad) > len(first) else []
    return [*(f"  {row.where}: {row.reason}" for row in first), *more]


def first_of_each_kind(bad: Sequence[BadRow]) -> list[BadRow]:
    """Return at most ``SHOWN`` rows of each kind of problem, in their order."""
    seen: Counter[str] = Counter()
    shown = []
    for row in bad:
        seen[row.kind] += 1
        if seen[row.kind] <= SHOWN:
            shown.append(row)
    return shown


def describe_skipped(bad: Sequence[BadRow], total: int, option: str) -> str:
    """Return one line for the log of a run with ``on_bad_row = skip``."""
    kinds = Counter(row.kind for row in bad)
    return f"{option}: left out {len(bad)} of {total} rows ({_counted(kinds)}); the first is {bad[0].where}"


def _counted(kinds: Counter[str]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())


def _column(row: Row, name: str) -> Any:
    if name not in row:
        if way := other_rows(row):
            raise no_column(row, name, way)
        near = near_prompts(row)
        first = f" {near[0]}" if near else ""
        example = f" '{' '.join(f'{{{one}}}' for one in near)}'" if near[1:] else ""
        raise no_column(
            row,
            name,
            f"Set --data.prompt_key{first} or --data.template{example}{hint_of_printed(row)}",
        )
    value = row[name]
    if value is None:
        raise RowProblem("empty", f"column {name!r} is null")
    return value


def _checked_message(entry: Any, number: int) -> Message:
    if not isinstance(entry, Mapping):
        raise RowProblem(
            "bad message",
            f"message {number}: expected an object with role and content, got {shown_value(entry)}",
        )
    message = {str(key): value for key, value in entry.items() if value is not None}
    if isinstance(calls := message.get("tool_calls"), str):
        message = {**message, "tool_calls": _calls_of(calls, number)}
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise RowProblem(
            "bad message", f"message {number}: expected a role, got {shown_value(role)}"
        )
    content = message.get("content")
    if isinstance(content, str):
        if content or role == "user":
            check_text(content, f"message {number}")
    elif isinstance(content, Sequence) and not isinstance(content, bytes):
        _check_parts(content, number, role)
    elif not (content is None and role == "assistant" and message.get("tool_calls")):
        raise RowProblem(
            "bad message",
            f"message {number}: expected text as content, got {shown_value(content)}. {_way_to_text(message)}",
        )
    return message


def _calls_of(text: str, number: int) -> list[Any]:
    """Return the calls that a table has as JSON text, since their arguments differ; none where it is blank.

    Raises:
        RowProblem: the text is no list.
    """
    try:
        calls = parse_json(text) if text.strip() else []
    except ValueError:
        calls = None
    if not isinstance(calls, list):
        raise RowProblem(
            "bad tool call",
            f"message {number}: expected tool_calls as a list, or as its JSON text; got {text!r:.60}",
        )
    return calls


def _way_to_text(message: Message) -> str:
    """Return how a message whose content is no text is given one."""
    if message.get("content") is not None:
        return "Write it as text, an object or a number as json.dumps writes it"
    if message.get("function_call"):
        return 'Write the call as tool_calls: [{"type": "function", "function": {...}}]'
    if found := [key for key in ("text", "value") if isinstance(message.get(key), str)]:
        return f"Its text is in {found[0]!r}: call this key content"
    return "Give it a text, or leave it out"


def _check_parts(content: Sequence[Any], number: int, role: str) -> None:
    """Refuse parts that are neither text nor image, texts that no tokenizer can carry, and a user who says nothing."""
    says_something = role != "user"
    for place, part in enumerate(content, start=1):
        where = f"message {number}, part {place}"
        try:
            text = text_of_part(part, where)
        except TemplateProblem as error:
            raise problem_of(error) from error
        if text and text.strip():
            check_text(text, where)
        says_something |= text is None or bool(text.strip())
    if not says_something:
        raise RowProblem("empty", f"message {number} is empty")


def _check_template(template: str) -> None:
    try:
        fields = _fields(template)
    except ValueError as error:
        raise DataError(
            f"data.template: {error}; write literal braces twice, {{{{ and }}}}",
            code="data/malformed-template",
        ) from error
    if not fields:
        raise DataError(
            "data.template uses no column; write one as {name}", code="data/template-without-column"
        )


def _fields(template: str) -> tuple[str, ...]:
    """Return the names of the columns in a format string."""
    names = [name for _, name, _, _ in string.Formatter().parse(template) if name is not None]
    columns = []
    for name in names:
        column = name.partition("[")[0]
        if "." in column or "]." in name:
            raise ValueError(f"expected a column name between braces, got {name!r}")
        if not column or column.isdigit():
            raise ValueError("expected a column name between braces, such as {question}")
        columns.append(column)
    return tuple(dict.fromkeys(columns))


def shown_value(value: object) -> str:
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:57] + '...'}"
