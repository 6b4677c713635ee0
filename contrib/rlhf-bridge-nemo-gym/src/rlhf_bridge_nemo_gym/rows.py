"""Tasks in NeMo Gym's JSONL: rows with ``responses_create_params`` and whatever their verifier needs.

``python -m rlhf_bridge_nemo_gym.rows GYM.jsonl OUT.jsonl`` writes them as rows for ``--data``, for the executor
``endpoint``: the prompt as chat messages, and the row itself in the column ``gym``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rlhf_core import DataError, RolloutError
from rlhf_core.outside.json_reader import BrokenJson, parse_json

from .items import messages_of


def gym_rows(paths: Iterable[str], split: str) -> Sequence[Mapping[str, Any]]:
    """Return the tasks of files: a key, and the row in the column ``gym``.

    Raises:
        DataError: a file or a row cannot be used.
    """
    found: list[Mapping[str, Any]] = []
    for path in paths:
        try:
            text = Path(path).expanduser().read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(
                f"{path}: expected a JSONL file of NeMo Gym ({error})", code="data/unreadable-tasks"
            ) from error
        for number, line in enumerate(text.splitlines(), start=1):
            if line.strip():
                row = _checked(line, f"{path}, line {number}")
                found.append({"key": f"{split}-{len(found)}", "gym": row})
    return found


def main(arguments: Sequence[str]) -> int:
    """Write a file of NeMo Gym as rows for ``--data``; return the exit code."""
    if len(arguments) != 2:
        print("usage: python -m rlhf_bridge_nemo_gym.rows GYM.jsonl OUT.jsonl", file=sys.stderr)
        return 2
    try:
        rows = gym_rows(arguments[:1], "row")
    except DataError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    with Path(arguments[1]).open("w", encoding="utf-8") as file:
        for row in rows:
            prompt = messages_of(row["gym"]["responses_create_params"]["input"])
            file.write(json.dumps({"prompt": prompt, "gym": row["gym"]}) + "\n")
    return 0


def _checked(line: str, where: str) -> dict[str, Any]:
    try:
        row = parse_json(line)
        params = row["responses_create_params"]
        messages_of(params["input"])
    except (BrokenJson, KeyError, TypeError, RolloutError) as error:
        raise DataError(
            f"{where}: expected an object with responses_create_params and its input "
            f"({type(error).__name__}: {error})",
            code="data/malformed-task",
        ) from error
    return dict(row)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
