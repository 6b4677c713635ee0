"""Columns of tokens, where a run recorded them: ``tokens/step-NNNNNNNN.parquet``, a row for each token."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .problems import Problems

FOLDER = "tokens"
MAX_ROWS = 4_000_000
"""Largest number of rows of a file that is read: a step has no more tokens in one file."""
UID, TEXT, ID, ACTION = "uid", "text", "token_id", "action"
ADVANTAGE = "advantage"
TEXTS, ORDER, LEARNED = "texts", "order", "learned"
"""Entries of the tokens of a row that is held out, which its own record has."""
NUMBERS = (
    "rollout_logprob",
    "trainer_logprob",
    "reference_logprob",
    "ratio",
    ADVANTAGE,
    "value",
    "entropy",
    "loss",
    "clipped",
    "version",
)
"""Columns of numbers that the page can color by; any of them may be missing. Tokens that are no action have none."""


@dataclass(slots=True, kw_only=True)
class TokenColumns:
    """Tokens of one rollout; all lists have the same length."""

    text: list[str]
    columns: dict[str, list[float | None]]


class TokenFiles:
    """The files of a run's tokens, each read once, when the first rollout of its step is asked for."""

    def __init__(self, run: Path, problems: Problems) -> None:
        self._folder = run / FOLDER
        self._problems = problems
        self._step: int | None = None
        self._rollouts: dict[str, TokenColumns] = {}

    def of(self, step: int, uid: str) -> TokenColumns | None:
        """Return the tokens of a rollout; None: none are recorded."""
        if step != self._step:
            self._step = step
            self._rollouts = self._read(self._folder / f"step-{step:08d}.parquet")
        return self._rollouts.get(uid)

    def _read(self, path: Path) -> dict[str, TokenColumns]:
        if not path.is_file():
            return {}
        # Only a run that recorded tokens needs it, and it takes half a second.
        import pyarrow.parquet as parquet
        from pyarrow import ArrowException

        try:
            file = parquet.ParquetFile(path)
            if file.metadata.num_rows > MAX_ROWS:
                self._problems.note(f"files of more than {MAX_ROWS} tokens are not read", path.name)
                return {}
            names = [
                name
                for name in (UID, TEXT, ID, ACTION, *NUMBERS)
                if name in file.schema_arrow.names
            ]
            columns = file.read(columns=names).to_pydict()
        except (OSError, ArrowException) as error:
            self._problems.note("files of tokens cannot be read", f"{path.name}: {error}")
            return {}
        return self._by_rollout(path, columns)

    def _by_rollout(self, path: Path, columns: dict[str, list[Any]]) -> dict[str, TokenColumns]:
        uids = columns.get(UID)
        ids = columns.get(ID, columns.get(TEXT, ()))
        texts = columns.get(TEXT) or [""] * len(ids)
        if not uids or len(texts) != len(uids):
            self._problems.note(
                "files of tokens have no column uid, or neither text nor token_id", path.name
            )
            return {}
        numbers = {name: columns[name] for name in (*NUMBERS, ACTION) if name in columns}
        found: dict[str, TokenColumns] = {}
        for row, uid in enumerate(uids):
            tokens = found.get(uid)
            if tokens is None:
                tokens = found[uid] = TokenColumns(text=[], columns={name: [] for name in numbers})
            tokens.text.append(str(texts[row]) or f"[{ids[row]}]")
            for name, column in numbers.items():
                tokens.columns[name].append(short(column[row]))
        for tokens in found.values():
            add_differences(tokens)
        return found


def mean_advantages(run: Path, step: int, problems: Problems) -> dict[str, float]:
    """Return each sample's advantage, the mean over its actions; empty: the step has no file, or no such column."""
    path = run / FOLDER / f"step-{step:08d}.parquet"
    if not path.is_file():
        return {}
    import pyarrow.parquet as parquet  # half a second, for runs that recorded tokens alone
    from pyarrow import ArrowException

    try:
        file = parquet.ParquetFile(path)
        if (
            not {UID, ADVANTAGE} <= set(file.schema_arrow.names)
            or file.metadata.num_rows > MAX_ROWS
        ):
            return {}
        means = (
            file.read(columns=[UID, ADVANTAGE]).group_by(UID).aggregate([(ADVANTAGE, "mean")])
        ).to_pydict()
    except (OSError, ArrowException) as error:
        problems.note("files of tokens cannot be read", f"{path.name}: {error}")
        return {}
    pairs = zip(means[UID], means[f"{ADVANTAGE}_mean"], strict=True)
    return {str(uid): mean for uid, mean in pairs if mean is not None and math.isfinite(mean)}


def short(value: Any) -> float | None:
    """Return a number with four digits, more than a color shows; None: there is none, or it is not finite."""
    if value is None or isinstance(value, str) or not math.isfinite(value):
        return None
    number = float(f"{float(value):.4g}")
    return int(number) if number.is_integer() else number


def tokens_of_row(value: Any, problems: Problems) -> TokenColumns | None:
    """Return the tokens of a record's entry ``tokens``; None: it has none, or the entry is of another form.

    Args:
        value: ``{"texts": [...], "order": T indices of texts, "learned": [[start, end], ...], "loss": A numbers or
            null, ...}``, with a number for each of the A tokens in the spans.
    """
    if value is None:
        return None
    text = _texts(value) if isinstance(value, dict) else None
    places = None if text is None else _places(value.get(LEARNED), len(text))
    if text is None or places is None:
        problems.note("tokens of rows that are of another form are left out")
        return None
    columns: dict[str, list[float | None]] = {}
    for name in NUMBERS:
        numbers = value.get(name)
        if isinstance(numbers, list) and len(numbers) == len(places):
            columns[name] = [None] * len(text)
            for at, number in zip(places, numbers, strict=True):
                columns[name][at] = short(number) if isinstance(number, int | float) else None
    learned = set(places)
    columns[ACTION] = [int(at in learned) for at in range(len(text))]
    tokens = TokenColumns(text=text, columns=columns)
    add_differences(tokens)
    return tokens


def _texts(value: dict[str, Any]) -> list[str] | None:
    """Return the text of each token; None: there are none, or not of this form."""
    texts, order = value.get(TEXTS), value.get(ORDER)
    if not isinstance(texts, list) or not all(isinstance(each, str) for each in texts):
        return None
    if not isinstance(order, list):
        return None
    if not all(type(at) is int and 0 <= at < len(texts) for at in order):
        return None
    return [texts[at] for at in order]


def _places(spans: Any, num_tokens: int) -> list[int] | None:
    """Return the indices of the learned tokens; None: the spans are none, or overlap."""
    if not isinstance(spans, list):
        return None
    places: list[int] = []
    for span in spans:
        if not (isinstance(span, list) and len(span) == 2 and all(type(at) is int for at in span)):
            return None
        start, end = span
        if not (places[-1] if places else -1) < start < end <= num_tokens:
            return None
        places += range(start, end)
    return places


def add_differences(tokens: TokenColumns) -> None:
    """Add what follows from the log-probs of two, where both are known: the ratio of the trainer's probability to the
    sampler's, and the log-prob of the trainer above that of the reference, which a preference rewards."""
    columns = tokens.columns
    ours = columns.get("trainer_logprob")
    for name, other, of in (
        ("ratio", "rollout_logprob", lambda gap: math.exp(min(gap, 50.0))),
        ("reference_log_ratio", "reference_logprob", float),
    ):
        theirs = columns.get(other)
        if ours is not None and theirs is not None and name not in columns:
            columns[name] = [
                None if a is None or b is None else short(of(a - b))
                for a, b in zip(ours, theirs, strict=True)
            ]
