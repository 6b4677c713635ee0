"""Metrics of ``rlhf show RUN... --metrics``: a table in the form that is asked for, and charts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from rlhf_core.errors import ConfigError

from .chart import chart
from .compared_runs import comparison_of
from .metrics_table import course_of, courses_of, series_of, table_of
from .records import METRICS, Record, records_of
from .tables import Form, print_table, printable

_LEARNED = frozenset({"loss", "nll", "kl", "accuracy"})
"""Parts of names of metrics that say how well rows are learned, where no rollouts say it."""


def show_metrics(
    runs: Sequence[Path], words: str, form: Form | None, *, as_json: bool, plot: bool
) -> None:
    """Print the table of a run's metrics, or of several runs beside each other.

    Args:
        words: see ``metrics_table.chosen``.
        form: None: text.
        as_json: print an object a line.
        plot: print a chart of each metric of the run behind the table.

    Raises:
        ConfigError: a folder has no metrics, a word is in the name of none, or two options exclude each other.
    """
    if as_json and form is not None:
        raise ConfigError(
            f"--table {form}: --json is a form too; leave one of them out",
            code="usage/two-forms",
        )
    if plot and (as_json or form not in (None, Form.TEXT)):
        raise ConfigError(
            "--plot: its charts are text; leave out --json and --table", code="usage/plot-is-text"
        )
    if plot and len(runs) > 1:
        raise ConfigError(
            "--plot: expected one run; rlhf view draws several on one axis: "
            f"rlhf view {' '.join(map(str, runs))}",
            code="usage/plot-of-one-run",
        )
    if twice := [run for at, run in enumerate(runs) if run in runs[:at]]:
        raise ConfigError(
            f"{twice[0]}: the run is named twice; expected different runs",
            code="usage/run-twice",
        )
    records = [_records(run) for run in runs]
    if len(runs) > 1:
        table = comparison_of(runs, records, words)
        if as_json:
            print("\n".join(map(json.dumps, table.objects())))
        else:
            print_table(table, form or Form.TEXT)
        return
    courses = courses_of(records[0], words, str(runs[0]))
    if as_json:
        print("\n".join(course.to_json() for course in courses))
        return
    if form in (None, Form.TEXT):  # programs get the table alone
        count = max((record["step"] for record in records[0]), default=0)
        title = f"{runs[0]}: {count} step{'' if count == 1 else 's'}"
        _print_line(printable(title), _console(), "bold")
    print_table(table_of(courses), form or Form.TEXT)
    if plot:
        _print_charts(records[0], [course.name for course in courses])


def learned_words(records: Iterable[Record]) -> str:
    """Return first and last value of a run's losses and accuracies in words; empty: it has none."""
    courses = [
        course_of(name, points)
        for name, points in series_of(records).items()
        if not _LEARNED.isdisjoint(name.split("/"))
    ]
    return ", ".join(
        f"{course.name} {course.first[1]:.4g} -> {course.last[1]:.4g}" for course in courses
    )


def _records(run: Path) -> list[Record]:
    path = run / METRICS
    if not path.is_file():
        raise ConfigError(
            f"{run}: it has no {METRICS}; expected a run's --output, such as runs/run",
            code="run/not-a-run",
        )
    return list(records_of(path))


def _print_charts(records: Sequence[Record], names: Sequence[str]) -> None:
    console = _console()
    braille = console.is_terminal and console.encoding == "utf-8"
    series = series_of(records)
    for name in names:
        print()
        _print_line(printable(name), console)
        for line in chart(series[name], console.width, braille=braille):
            _print_line(line, console)


def _console() -> Console:
    return Console(highlight=False, markup=False, emoji=False)


def _print_line(text: str, console: Console, style: str = "") -> None:
    shown = text.encode(console.encoding, "backslashreplace").decode(console.encoding)
    console.print(Text(shown, style=style), soft_wrap=True)
