"""Refusal of files whose JSON is rows, but in another layout than one object a line, with the way to that one.

Read line by line, such a file would be as many broken rows as it has lines.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

from rlhf_core.errors import DataError

from ..source import Row

WRAPPERS = ("data", "rows", "train", "examples", "samples", "records", "instances", "items")
"""Keys under which an object holds a list of rows, as exports write it."""
_OF_ROWS = ("prompt", "question", "instruction", "response", "answer", "text")
"""Columns by which an object with a list is a row itself."""
_TURNS = ("role", "from")
"""Keys of a message, whose list is a conversation and no list of rows."""
_READ = 2**26
"""Largest number of bytes behind the first line in which its object may end."""


def refuse_other_layout(path: Path, content: Path, num_lines: int) -> None:
    """Refuse a file of lines that starts with an object over several of them, a list of rows, or an object around one.

    Args:
        path: the file, for messages.
        content: where its content is.
        num_lines: number of its lines that are not blank.

    Raises:
        DataError: it is such a file.
    """
    with open(content, "rb") as file:
        first = file.readline()
        if num_lines > 1 and _is_whole(first):
            return
        text = (first + file.read(_READ)).decode("utf-8-sig", errors="replace")
    start = len(text) - len(text.lstrip())
    try:
        value, end = json.JSONDecoder().raw_decode(text, start)
    except (ValueError, RecursionError):
        return  # The line is broken, and the row says so.
    line = 1 + text.count("\n", 0, start)
    last = line + text.count("\n", start, end)
    is_all = not text[end:].strip()
    if is_all and _are_rows(value):
        name = path.name.replace(".jsonl", ".json")
        raise DataError(
            f"{path}:{line}: expected one JSON object a line, got a list of {len(value)} rows. Name the file {name}: "
            "it may hold a list",
            code="data/malformed-file",
        )
    if is_all and (key := _wrapper(value)):
        raise DataError(
            f"{path}:{line}: expected rows, got one object whose {key!r} is a list of {len(value[key])} rows. Write "
            f"the list alone: {_command(path, f'.{key}')} > rows.json",
            code="data/malformed-file",
        )
    if is_all and (length := _length_of_columns(value)):
        raise DataError(
            f"{path}:{line}: expected rows, got one object of columns, each a list of {length} texts. Write the rows: "
            f"pandas.read_json({str(path)!r}).to_json('rows.jsonl', orient='records', lines=True)",
            code="data/malformed-file",
        )
    if isinstance(value, dict) and last > line:
        raise DataError(
            f"{path}:{line}: expected one JSON object a line; the first one is on lines {line} to {last}. Write each "
            f"row on one line: {_command(path, '-c .')} > one_a_line.jsonl",
            code="data/malformed-file",
        )


def _is_whole(line: bytes) -> bool:
    """Return whether a line is an object by its looks; whether it is one in truth, its row says."""
    line = line.strip().removeprefix(b"\xef\xbb\xbf")
    return len(line) > 1 and line.startswith(b"{") and line.endswith(b"}")


def _are_rows(value: object) -> bool:
    """Return whether a value is a list of objects, and no conversation, which may be a row's."""
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(one, dict) and not any(key in one for key in _TURNS) for one in value)
    )


def _wrapper(value: Any) -> str | None:
    """Return the key under which an object holds rows: the only one with more than a number or a word."""
    if not isinstance(value, dict):
        return None
    found = [key for key in WRAPPERS if _are_rows(value.get(key))]
    others: Row = {key: one for key, one in value.items() if key not in found}
    is_row = any(isinstance(one, list) or key in _OF_ROWS for key, one in others.items())
    return found[0] if len(found) == 1 and not is_row else None


def _length_of_columns(value: Any) -> int | None:
    """Return the length of the lists if an object is a table of columns; None: it is none, or a row with lists."""
    if not isinstance(value, dict) or not all(isinstance(one, list) for one in value.values()):
        return None
    lengths = {len(one) for one in value.values()}
    texts = [one for key, one in value.items() if key in _OF_ROWS]
    is_table = len(lengths) == 1 and all(isinstance(cell, str) for one in texts for cell in one)
    return lengths.pop() if texts and is_table else None


def _command(path: Path, wanted: str) -> str:
    """Return the command that prints what is wanted of a file."""
    name = shlex.quote(str(path))
    return f"gzip -dc {name} | jq {wanted}" if path.suffix == ".gz" else f"jq {wanted} {name}"
