"""Contents of the page: an index that is read at its start, and chunks for everything else."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlhf_core import ConfigError

from ..recorded.fates import read_fates
from ..recorded.metrics import Metrics, read_metrics
from ..recorded.options import offered, read_options
from ..recorded.problems import Problems
from ..recorded.replay_note import CHANGED, ORIGINAL, note_of
from .chunks import Chunks, number_of
from .images import Images
from .rollouts import Rollouts, Wanted

METRICS, SAMPLES, EVAL_SAMPLES = "metrics.jsonl", "samples.jsonl", "eval_samples.jsonl"
CONFIG, LEDGER = "config.toml", "ledger.jsonl"
_SHORT = {"\\": "\\\\", "'": "\\'", "\n": "\\n", "\t": "\\t", "\r": "\\r"}
_IMAGE_SHARE = 0.25
"""Share of the page's limit that images may take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """Data of the page."""

    index: dict[str, Any]
    chunks: Chunks


def contents_of(runs: Sequence[Path], *, max_bytes: int, wanted: Wanted) -> Contents:
    """Return what the page shows of runs.

    Args:
        max_bytes: largest number of bytes of the page's chunks.
        wanted: whether the rollouts of a step are shown; curves have all steps.

    Raises:
        ConfigError: a folder is no run folder.
    """
    for run in runs:
        require_run(run)
    chunks = Chunks(max_bytes)
    images = Images(chunks, int(max_bytes * _IMAGE_SHARE))
    names = _names(runs)
    described = [
        _described(run, name, chunks, images, wanted) for run, name in zip(runs, names, strict=True)
    ]
    index = {"form": 1, "runs": described, "replays": _replays(runs)}
    return Contents(index=index, chunks=chunks)


def require_run(run: Path, command: str = "rlhf view") -> None:
    """Refuse a folder that has no record of a run.

    Args:
        command: who asks, for the message.

    Raises:
        ConfigError: it has none.
    """
    if not run.is_dir():
        raise ConfigError(
            f"{command} {run}: no such folder; expected a run's --output, such as runs/run",
            code="lab/no-run",
        )
    if not any((run / name).is_file() for name in (METRICS, SAMPLES, EVAL_SAMPLES)):
        raise ConfigError(
            f"{command} {run}: expected a run folder, with {METRICS} or {SAMPLES}; it has neither. Name a run's "
            "--output, such as runs/run",
            code="lab/not-a-run",
        )


def _described(
    run: Path, name: str, chunks: Chunks, images: Images, wanted: Wanted
) -> dict[str, Any]:
    """Return what the index has of a run, and put the rest into chunks."""
    problems = Problems()
    options = read_options(run / CONFIG, problems)
    metrics = read_metrics(run / METRICS, problems)
    fates = read_fates(run / LEDGER, problems)
    series = chunks.add(
        {
            each: [
                values.steps,
                [number_of(s) or 0 for s in values.seconds],
                [number_of(v) for v in values.values],
            ]
            for each, values in metrics.series.items()
        }
    )
    if series is None:
        problems.note("curves are left out, as the page is at its limit (--max-mb)")
    rollouts = Rollouts(run, chunks, images, problems, wanted)
    for path in (run / SAMPLES, run / EVAL_SAMPLES):
        if path.exists():
            rollouts.read(path)
    steps = rollouts.finished()
    prompts = chunks.add([step.pop("prompts") for step in steps])
    return {
        "name": name,
        "folder": str(run),
        "replay": replay_command(run) if options.command else "",
        "changeable": [
            path
            for path, value in options.values.items()
            if offered(path, value, has_rollouts=not any(step["kind"] for step in steps))
        ],
        "command": options.command,
        "version": options.version,
        "end": metrics.end,
        "last_step": metrics.last_step,
        "options": options.values,
        "metrics": list(metrics.series),
        "series": series,
        "first_last": _first_last(metrics),
        "steps": steps,
        "prompts": prompts,
        "fates": {str(step): fate for step, fate in fates.items() if fate["dropped"]},
        "problems": problems.lines(),
    }


def _replays(runs: Sequence[Path]) -> list[dict[str, Any]]:
    """Return which runs of the page are parts of replays: indices of the run that was replayed, if the page has it, of
    the steps as they were and as changed, the span, and what was changed."""
    places = {run.resolve(): at for at, run in enumerate(runs)}
    found = {}
    for run in runs:
        folder, note = run.resolve().parent, note_of(run)
        if note is not None and folder not in found:
            found[folder] = {
                "of": places.get(Path(note.run)) if note.run else None,
                ORIGINAL: places.get(folder / ORIGINAL),
                CHANGED: places.get(folder / CHANGED),
                "from": note.first,
                "to": note.last,
                "words": " ".join(map(quoted, note.changed)),
            }
    return list(found.values())


def _first_last(metrics: Metrics) -> dict[str, list[float | None]]:
    """Return the first and the last value of each metric, for the table that compares runs."""
    return {
        name: [number_of(series.values[0]), number_of(series.values[-1])]
        for name, series in metrics.series.items()
        if series.values and not name.startswith("timing/")
    }


def _names(runs: Sequence[Path]) -> list[str]:
    """Return a short name of each run: of its path the parts that tell it from the others."""
    parts = [run.resolve().parts for run in runs]
    for count in range(1, max(map(len, parts)) + 1):
        names = ["/".join(each[-count:]) for each in parts]
        if len(set(names)) == len(names):
            return names
    return [f"{each[-1]} ({number})" for number, each in enumerate(parts, start=1)]


def replay_command(run: Path) -> str:
    """Return the beginning of the command that does steps of a run again; ``--from STEP --to STEP`` follow."""
    path = str(run)
    return f"rlhf replay {quoted(f'./{path}' if path.startswith('-') else path)}"


def quoted(word: str) -> str:
    """Return a word that a POSIX shell reads as it is.

    One with characters that a terminal obeys or does not show, such as line breaks, escapes and turns of direction, is
    written as ``$'...'`` of bash, zsh and ksh, with these as bytes in hexadecimal: what is seen is what is pasted.
    """
    if word.isprintable():
        return shlex.quote(word)
    return "$'" + "".join(map(_escaped, word)) + "'"


def _escaped(character: str) -> str:
    if character in _SHORT:
        return _SHORT[character]
    if character.isprintable():
        return character
    return "".join(f"\\x{byte:02x}" for byte in os.fsencode(character))
