"""Source of data rows, which reads rows one at a time and knows the place of each row."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeGuard

from rlhf_core.errors import DataError

Row = Mapping[str, Any]
"""Values of a data row by column. Any: a data set may hold any type."""

MAX_CHARACTERS = 2**22
"""Maximum number of characters of a text that is tokenized, where the number of tokens has no limit."""
TEMPLATE_KWARGS = "chat_template_kwargs"
"""Column that a row may have: variables for the chat template, by which its messages are rendered."""


def filled_columns(row: Row) -> tuple[str, ...]:
    """Return the names of the columns in which a row has a value, for messages: a null may come from a table in which
    other rows have more, or from the form of the rows."""
    return tuple(str(name) for name, value in row.items() if value is not None)


def is_list(value: object) -> TypeGuard[Sequence[Any]]:
    """Return whether a value is a list, or another sequence that is no text."""
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def printed_list(value: object) -> bool:
    """Return whether a value is the text that Python prints for a list of objects, which is no JSON."""
    return isinstance(value, str) and value.lstrip().startswith("[{'")


def printed_messages(text: str) -> bool:
    """Return whether a text is what Python prints for chat messages or turns of ShareGPT, as in files of pandas.

    The list is the whole text, and has both keys of such entries: a prompt may be about another list.
    """
    if not printed_list(text) or not text.rstrip().endswith("}]"):
        return False
    forms = (("'role':", "'content':"), ("'from':", "'value':"))
    return any(all(key in text for key in keys) for keys in forms)


def hint_of_printed(row: Row) -> str:
    """Return a sentence on the first column with such a text, with a blank before it; empty: there is none."""
    name = next((name for name, value in row.items() if printed_list(value)), None)
    if name is None:
        return ""
    return f". Column {name!r} has a list as Python prints it, which is no JSON; write it with json.dumps"


def code_of(kind: str) -> str:
    """Return the code of an error about rows: ``data/`` and the kind of their problem, such as
    ``data/missing-column``."""
    return "data/" + re.sub(r"[^a-z0-9]+", "-", kind.lower().replace("'", ""))


class Unusable(Protocol):
    """Reason why a row cannot be used, as a problem or a stand-in for the row has it."""

    @property
    def kind(self) -> str: ...

    @property
    def reason(self) -> str: ...


def row_error(where: str, problem: Unusable) -> DataError:
    """Return the error about the row at ``where``, with the code of its problem's kind."""
    return DataError(f"{where}: {problem.reason}", code=code_of(problem.kind))


AS_UTF8 = (
    "Convert the file: iconv -f ENCODING -t UTF-8 OLD > NEW, where ENCODING is mostly WINDOWS-1252, "
    "or UTF-16 if no line can be read"
)
"""Advice behind what is wrong; nothing in a file says its encoding for certain."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Stand-in for a row that could not be read."""

    reason: str
    """Expected form of the row, and the actual one."""
    kind: str = "unreadable"
    """A few words that are the same for all rows with this sort of problem."""


class Source(Protocol):
    """Rows in a fixed order, by index. Reading a row again gives the same values."""

    name: str
    """Short name, by which results are grouped."""

    def __len__(self) -> int: ...

    def row(self, index: int) -> Row:
        """Return the row of an index by its original column names, as plain Python values.

        Raises:
            DataError: the row cannot be read.
        """

    def scan(self, columns: Sequence[str] | None = None) -> Iterator[Row | Unreadable]:
        """Yield all rows in order. With ``columns`` other columns but ``TEMPLATE_KWARGS`` may be left out."""

    def where(self, index: int) -> str:
        """Return the place of a row for messages: ``file:line`` or ``set:row``."""
