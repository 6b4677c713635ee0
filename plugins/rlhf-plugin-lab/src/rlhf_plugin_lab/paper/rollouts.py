"""Rollouts of a run in the page: for each step a table of numbers, and texts in chunks that are read one at a time."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..recorded.lines import lines_of, step_of
from ..recorded.problems import Problems
from ..recorded.tokens import TokenColumns, TokenFiles, tokens_of_row
from ..recorded.turns import Turn, turns_of
from .chunks import Chunks, number_of
from .images import Images

TRAINING = ""
"""Name of the set of training rollouts; those of evaluations have the names that they are recorded by."""
_CHUNK_ROLLOUTS = 256
_CHUNK_CHARACTERS = 1 << 19
"""A chunk of texts ends at so many rollouts or characters."""
_TOKEN = 12
"""Characters that a token's columns count as."""
_PREVIEW = 140
_MARK = re.compile(r"<\|[^|<>\s]{1,60}\|>(?:user\n)?|<start_of_turn>user\n")
_KNOWN = {
    *("step", "eval", "uid", "prompt", "response", "reward", "rewards", "truncated", "parts"),
    *("unshaped", "images", "end", "step_rewards", "example", "chosen", "steps", "tokens"),
}
"""Fields of a sample that the page has a place for; it shows all others as they are."""
_KINDS = {"row", "pair", "judged", "steps"}
"""Kinds of rows of examples: of tokens, of two answers, of an answer that was judged, of labeled steps."""

Wanted = Callable[[int], bool]


@dataclass(slots=True)
class _Table:
    """Rollouts of one step and set on their way into the page."""

    step: int
    name: str
    kind: str = ""
    """Kind of its rows of examples; empty: they are rollouts."""
    columns: dict[str, list[Any]] = field(default_factory=dict)
    rewards: dict[str, list[float | None]] = field(default_factory=dict)
    waiting: list[dict[str, Any]] = field(default_factory=list)
    tokens: list[TokenColumns | None] = field(default_factory=list)
    size: int = 0
    """Number of characters and tokens that wait."""
    prompts: dict[str, None] = field(default_factory=dict)
    asked: dict[str, str] = field(default_factory=dict)
    """Group -> the beginning of what was asked."""

    def __len__(self) -> int:
        return len(self.columns.get("uid", ()))


class Rollouts:
    """Collector of a run's rollouts.

    Args:
        run: folder of the run.
        wanted: whether a step is shown.
    """

    def __init__(
        self, run: Path, chunks: Chunks, images: Images, problems: Problems, wanted: Wanted
    ) -> None:
        self._run, self._chunks, self._images, self._problems = run, chunks, images, problems
        self._wanted = wanted
        self._tokens = TokenFiles(run, problems)
        self._tables: dict[tuple[int, str], _Table] = {}

    def read(self, path: Path) -> None:
        """Add the rollouts of a file of samples."""
        for line in lines_of(path, self._problems):
            step = step_of(line.value)
            if step is None:
                self._problems.note(f"lines of {path.name} without a step are left out")
            elif self._wanted(step):
                name = line.value.get("eval", TRAINING)
                self._add(step, name if isinstance(name, str) else "?", line.value)

    def finished(self) -> list[dict[str, Any]]:
        """Return a summary of each step and set, with the name of the part that has its table."""
        steps = []
        for table in sorted(self._tables.values(), key=lambda each: (each.step, each.name)):
            self._flush(table)
            for column in table.rewards.values():  # rewards that the last rollouts do not have
                column += [None] * (len(table) - len(column))
            part = self._chunks.add(
                {**table.columns, "rewards": table.rewards, "asked": table.asked}
            )
            if part is None:
                self._no_room(len(table))
                continue
            rewards = [value for value in table.columns["reward"] if value is not None]
            steps.append(
                {
                    "step": table.step,
                    "set": table.name,
                    "count": len(table),
                    "reward": number_of(sum(rewards) / len(rewards)) if rewards else None,
                    "part": part,
                    "kind": table.kind,
                    "prompts": list(table.prompts),
                }
            )
        return steps

    def _add(self, step: int, name: str, sample: Mapping[str, Any]) -> None:
        table = self._tables.setdefault((step, name), _Table(step, name))
        kind = sample.get("example")
        table.kind = kind if isinstance(kind, str) and kind in _KINDS else ""
        turns = turns_of(sample)
        if not turns:
            self._problems.note("rollouts without a text are shown by their numbers alone")
        named = sample.get("uid")
        uid = named if isinstance(named, str) else f"?{len(table)}"
        answer = "".join(text for writer, _, text in turns if writer != "prompt")
        own = tokens_of_row(sample.get("tokens"), self._problems)
        tokens = self._tokens.of(step, uid) if name == TRAINING else own
        text = {
            "turns": turns,
            "images": self._images.embedded(self._run, sample.get("images"), self._problems),
            "step_rewards": _pairs(sample.get("step_rewards")),
            "steps": _labeled_steps(sample.get("steps")),
            "other": {key: repr(sample[key])[:1000] for key in sample.keys() - _KNOWN},
        }
        table.waiting.append({key: value for key, value in text.items() if value})
        table.tokens.append(tokens)
        table.size += sum(len(each) for _, _, each in turns) + _TOKEN * len(
            tokens.text if tokens else ()
        )
        table.prompts[_prompt_of(uid)] = None
        table.asked.setdefault(_group_of(uid), _asked(turns))
        _append(table, uid=uid, sample=sample, answer=answer, turns=turns)
        if len(table.waiting) >= _CHUNK_ROLLOUTS or table.size >= _CHUNK_CHARACTERS:
            self._flush(table)

    def _flush(self, table: _Table) -> None:
        """Move the texts that wait into a chunk, and tell the table where they are."""
        if not table.waiting:
            return
        part = self._chunks.add(table.waiting, spare=True)
        if part is None:
            self._no_room(len(table.waiting))
        columns = self._flushed_tokens(table.tokens)
        table.columns.setdefault("place", []).extend(
            [part, index, columns if table.tokens[index] else None] if part else None
            for index in range(len(table.waiting))
        )
        table.waiting, table.tokens, table.size = [], [], 0

    def _flushed_tokens(self, rollouts: Sequence[TokenColumns | None]) -> str | None:
        """Return the name of a part with the tokens of rollouts: they are larger than texts, and seldom looked at."""
        if not any(rollouts):
            return None
        part = self._chunks.add(
            [{"text": each.text, "columns": each.columns} if each else None for each in rollouts],
            spare=True,
        )
        if part is None:
            self._problems.note(
                "columns of tokens are left out, as the page is at its limit (--max-mb)"
            )
        return part

    def _no_room(self, count: int) -> None:
        self._problems.note(
            "texts of rollouts are left out, as the page is at its limit: raise --max-mb, or choose fewer --steps",
            count=count,
        )


def _append(
    table: _Table, *, uid: str, sample: Mapping[str, Any], answer: str, turns: Sequence[Any]
) -> None:
    rewards = sample.get("rewards")
    row = {
        "uid": uid,
        "reward": number_of(sample.get("reward")),
        "unshaped": number_of(sample.get("unshaped")),
        "length": len(answer),
        "turns": sum(writer == "policy" for writer, _, _ in turns),
        "truncated": int(sample.get("truncated") is True),
        "end": sample["end"] if isinstance(sample.get("end"), str) else "",
        "preview": answer[:_PREVIEW],
    }
    if isinstance(sample.get("chosen"), bool):
        row["chosen"] = int(sample["chosen"])
    for name, value in row.items():
        table.columns.setdefault(name, []).append(value)
    count = len(table)
    for name, value in rewards.items() if isinstance(rewards, dict) else ():
        column = table.rewards.setdefault(name, [])
        column += [None] * (count - 1 - len(column))
        column.append(number_of(value))


def _prompt_of(uid: str) -> str:
    """Return the number of a rollout's prompt, which is the same in every epoch."""
    parts = uid.split(".")
    return parts[1] if len(parts) == 4 else uid


def _group_of(uid: str) -> str:
    """Return the name of a rollout's group, as the page has it."""
    parts = uid.split(".")
    return ".".join(parts[:2]) if len(parts) == 4 else uid


def _asked(turns: Sequence[Turn]) -> str:
    """Return the beginning of the last question of a prompt: of a user's turn, if the template marks one."""
    prompt = [(role, text) for writer, role, text in turns if writer == "prompt"]
    users = [text for role, text in prompt if role == "user"] or [text for _, text in prompt]
    return _MARK.sub("", users[-1][:1000]).strip()[:_PREVIEW] if users else ""


def _labeled_steps(value: object) -> list[list[str | float | None]]:
    """Return text, score and label of each labeled step of a row."""
    return [
        [each[0], number_of(each[1]), number_of(each[2])]
        for each in (value if isinstance(value, list) else ())
        if isinstance(each, list) and len(each) == 3 and isinstance(each[0], str)
    ]


def _pairs(value: object) -> list[list[float]]:
    return [
        [pair[0], number]
        for pair in (value if isinstance(value, list) else ())
        if isinstance(pair, list)
        and len(pair) == 2
        and type(pair[0]) is int
        and (number := number_of(pair[1])) is not None
    ]
