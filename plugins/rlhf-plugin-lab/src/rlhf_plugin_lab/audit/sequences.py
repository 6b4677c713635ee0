"""Recorded sequences with the log-probs of sampler and trainer, from the files of the observer ``token_files``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rlhf_core import ConfigError
from rlhf_core.lazy import NDArray, np

from ..paper.images import MEDIA
from ..recorded.lines import lines_of
from ..recorded.problems import Problems
from ..recorded.tokens import FOLDER

SAMPLER, SAMPLES = "sampler", "samples.jsonl"
SIDES = {SAMPLER: "rollout_logprob", "trainer": "trainer_logprob"}
"""Side that computed log-probs -> the column of the files."""
_NEEDED = ("uid", "token_id", "action", "version")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """One sequence of ``T`` tokens. No action is its first token, which nothing precedes."""

    token_ids: NDArray[np.int64]
    """(T,)"""
    action_mask: NDArray[np.bool_]
    """(T,)"""
    logprobs: dict[str, NDArray[np.float64]]
    """Side -> (T,) recorded log-probs, NaN where there is none."""
    versions: frozenset[int] = frozenset()
    """Versions of the weights that sampled the actions, as far as they are known."""
    uid: str = ""
    """Name of the sample."""
    images: tuple[Path, ...] = ()
    """Files of the images that are seen, in the order of their tokens."""

    @property
    def num_prompt(self) -> int:
        """Number of tokens before the first action."""
        return int(np.argmax(self.action_mask))


def read_sequences(run: Path, step: int, version: int | None) -> list[Recorded]:
    """Return the sequences of a step that have actions and log-probs.

    Args:
        version: version of the weights that must have sampled every action; None: any.

    Raises:
        ConfigError: the step has no file, or the file lacks what an audit needs.
    """
    path = run / FOLDER / f"step-{step:08d}.parquet"
    if not path.is_file():
        raise ConfigError(
            f"rlhf audit {run}: expected the tokens of step {step} in {path}, which is not there. Record them: "
            "rlhf train ... --observers.use token_files --log.samples 16 (or name a recorded step with --step)",
            code="lab/no-tokens",
        )
    columns = _columns(path)
    found = [_recorded(columns, rows) for rows in _rows(columns["uid"])]
    kept = [
        each
        for each in found
        if each is not None and (version is None or each.versions == {version})
    ]
    if not kept:
        asked = "" if version is None else f" that weights of version {version} sampled"
        raise ConfigError(
            f"rlhf audit {run}: expected sequences with actions{asked} in {path}, and there is none. Name another "
            "step with --step, and with --model the weights that sampled it",
            code="lab/no-tokens",
        )
    return kept


def with_images(run: Path, step: int, sequences: Sequence[Recorded]) -> list[Recorded]:
    """Return sequences with the files of their images, which the samples of the step name."""
    named = {
        str(line.value.get("uid")): line.value.get("images") or []
        for line in lines_of(run / SAMPLES, Problems())
        if line.value.get("step") == step
    }
    return [replace(each, images=_files(run, named.get(each.uid, []))) for each in sequences]


def _files(run: Path, images: list[dict[str, Any]]) -> tuple[Path, ...]:
    if any("time_s" in each for each in images):
        raise ConfigError(
            f"rlhf audit {run}: samples of the step have frames of a video, and expected are images by themselves. "
            "Name a step without them with --step",
            code="lab/no-tokens",
        )
    found = tuple((run / str(each.get("file"))).resolve() for each in images)
    outside = [path for path in found if (run / MEDIA).resolve() not in path.parents]
    if outside:
        raise ConfigError(
            f"rlhf audit {run}: expected images in {run / MEDIA}; {SAMPLES} names {outside[0]}. Record the step again",
            code="lab/number-of-images",
        )
    return found


def spread_over(sequences: Sequence[Recorded], limit: int) -> list[Recorded]:
    """Return at most ``limit`` sequences, from all over the list: neighbors are often of one prompt."""
    if len(sequences) <= limit:
        return list(sequences)
    return [sequences[index * len(sequences) // limit] for index in range(limit)]


def has_logprobs(sequence: Recorded, side: str) -> bool:
    """Return whether a side recorded log-probs of a sequence."""
    return side in sequence.logprobs and bool(np.isfinite(sequence.logprobs[side]).any())


def _columns(path: Path) -> dict[str, list[Any]]:
    import pyarrow.parquet as parquet
    from pyarrow import ArrowException

    try:
        columns: dict[str, list[Any]] = parquet.read_table(path).to_pydict()
    except (OSError, ArrowException) as error:
        raise ConfigError(
            f"rlhf audit: {path} cannot be read as Parquet ({error}). Record the step again",
            code="lab/tokens-unreadable",
        ) from error
    missing = [name for name in (*_NEEDED, SIDES[SAMPLER]) if name not in columns]
    if missing:
        raise ConfigError(
            f"rlhf audit: {path} has no column {', '.join(missing)}; expected a file of the observer token_files. "
            "Record it with this version: --observers.use token_files",
            code="lab/no-column",
        )
    return columns


def _rows(uids: list[str]) -> list[list[int]]:
    rows: dict[str, list[int]] = {}
    for row, uid in enumerate(uids):
        rows.setdefault(uid, []).append(row)
    return list(rows.values())


def _recorded(columns: dict[str, list[Any]], rows: list[int]) -> Recorded | None:
    """Return a sequence; None where it has no actions. NumPy reads a missing number as NaN."""
    action_mask = np.array([bool(columns["action"][row]) for row in rows])
    if not action_mask[1:].any() or action_mask[0]:
        return None
    logprobs = {
        side: np.array([columns[name][row] for row in rows], dtype=np.float64)
        for side, name in SIDES.items()
        if name in columns
    }
    versions = frozenset(
        columns["version"][row] for row, acts in zip(rows, action_mask, strict=True) if acts
    )
    token_ids = np.array([columns["token_id"][row] for row in rows], dtype=np.int64)
    return Recorded(
        token_ids=token_ids,
        action_mask=action_mask,
        logprobs=logprobs,
        versions=versions,
        uid=str(columns["uid"][rows[0]]),
    )
