"""The command ``rlhf view``: it reads runs, and writes one page of them or serves it on this machine."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from rlhf_config import FlagParser
from rlhf_core import ConfigError
from rlhf_core.storage import written_whole

from .paper.contents import Contents, contents_of
from .paper.html import page
from .recorded.replay_note import with_replayed
from .replaceable import why_not_replaceable
from .serving import serve

_START = b"<!DOCTYPE html>"


def parser() -> FlagParser:
    """Return the parser of the command's flags."""
    own = FlagParser(
        prog="rlhf view",
        description="Show runs as one page: curves, the options that differ, rollouts side by side, episodes by turns, "
        "tokens where they are recorded. The page loads nothing from the network. Without --export it is served on "
        "127.0.0.1, at an address that holds a token, until Ctrl-C.",
    )
    own.add_argument(
        "runs",
        nargs="+",
        type=Path,
        metavar="RUN",
        help="run folder (a run's --output), or the --out folder of a replay; several are compared",
    )
    own.add_argument(
        "--export",
        type=Path,
        metavar="FILE.html",
        help="write the page into a file, which opens from disk",
    )
    own.add_argument(
        "--export-traces",
        type=Path,
        metavar="FILE.jsonl",
        help="write the run's recorded episodes into a file in place of a page, each a line in the form of OpenEnv's "
        "TrainingTrace: token ids, log-probs, loss mask, messages, and the recorded columns",
    )
    own.add_argument(
        "--steps",
        metavar="LIST",
        help="steps whose rollouts are in the page or file, such as 1,10,100-200; unset: all. Curves have all steps",
    )
    own.add_argument(
        "--max-mb",
        type=int,
        default=256,
        help="largest size of the page's data, in MB (default 256); the page says what is left out",
    )
    own.add_argument(
        "--port", type=int, default=0, help="port of 127.0.0.1; 0: a free one (default 0)"
    )
    return own


def main(arguments: Sequence[str]) -> int:
    """Write the page or a file of traces, or serve the page, and return the exit code 0.

    Raises:
        ConfigError: a flag is wrong, or a folder is no run folder.
        StorageError: the file cannot be written.
    """
    own = parser().parse_args(list(arguments))
    if own.max_mb < 1:
        raise ConfigError(f"--max-mb {own.max_mb}: expected 1 or more", code="usage/megabytes")
    if not 0 <= own.port <= 65535:
        raise ConfigError(
            f"--port {own.port}: expected a number from 0 to 65535", code="usage/port"
        )
    wanted = _wanted(own.steps)
    if own.export_traces is not None:
        from .traces.export import export_traces  # a page needs none of it

        if own.export is not None:
            raise ConfigError(
                f"--export-traces {own.export_traces}: it cannot be combined with --export; leave --export out",
                code="usage/page-beside-traces",
            )
        if len(own.runs) > 1:
            raise ConfigError(
                f"--export-traces {own.export_traces}: expected one run, got {len(own.runs)}; export them one by one",
                code="usage/several-runs",
            )
        export_traces(own.runs[0], own.export_traces, wanted)
        return 0

    runs = list(with_replayed(own.runs))

    def read() -> Contents:
        return contents_of(runs, max_bytes=own.max_mb * 1_000_000, wanted=wanted)

    if own.export is None:
        serve(runs, read, own.port)
    else:
        _export(own.export, read())
    return 0


def _export(path: Path, contents: Contents) -> None:
    """Write the page, and say what is in it and what is missing."""
    _require_replaceable(path)
    with written_whole(path) as file:
        for piece in page(contents):
            file.write(piece)
    for run in contents.index["runs"]:
        rollouts = sum(step["count"] for step in run["steps"])
        what = "rows" if any(step["kind"] for step in run["steps"]) else "rollouts"
        print(
            f"{run['folder']}: {run['last_step']} steps, {len(run['metrics'])} metrics, {rollouts} {what}"
        )
        for problem in run["problems"]:
            print(f"{run['folder']}: {problem}", file=sys.stderr)
    print(f"written: {path} ({path.stat().st_size / 1e6:.1f} MB); it opens in a browser, from disk")


def _require_replaceable(path: Path) -> None:
    """Refuse to write over something that is no page."""
    problem = why_not_replaceable(path, _START, "page")
    if problem is not None:
        raise ConfigError(f"--export {path}: {problem}", code="output/not-exported")


def _wanted(text: str | None) -> Callable[[int], bool]:
    """Return whether a step is in a list such as ``1,10,100-200``; None is a list of all."""
    if text is None:
        return lambda step: True
    spans = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if (
            not first.isdecimal()
            or (dash and not last.isdecimal())
            or (dash and int(last) < int(first))
        ):
            raise ConfigError(
                f"--steps {text}: expected steps and spans of steps, such as 1,10,100-200; got {part!r}",
                code="usage/spans-of-steps",
            )
        spans.append((int(first), int(last) if dash else int(first)))
    return lambda step: any(first <= step <= last for first, last in spans)
