"""Lines of ``rlhf data check``: the form of each file, bad rows by kind, a table, and the command to run next."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from rlhf_data.checking import SourceReport
    from rlhf_data.forms.form import RowKind

_OF_RUNS = re.compile(r"--data\.([a-z_]+)")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def print_text(text: str) -> None:
    """Print any text, with the characters escaped that a terminal cannot show or would obey."""
    encodable = text.encode("utf-8", "backslashreplace").decode("utf-8")
    typer.echo(_CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", encodable))


_NO_FORM = (
    "data: no known form ({}). Name its columns: --prompt-key, with --response-key for answers to learn, or "
    "--chosen-key and --rejected-key for pairs"
)


def as_typed_here(text: str, names: Collection[str]) -> str:
    """Return a text in which options of ``data`` that this command has under a name of its own have that one.

    Args:
        names: this command's options, as its parameters are called.
    """
    return _OF_RUNS.sub(
        lambda found: f"--{found[1].replace('_', '-')}" if found[1] in names else found[0], text
    )


def print_report(
    spec: str, report: SourceReport, *, all_rows: bool, options: Collection[str] = ()
) -> None:
    """Print the form of a set, its bad rows, and what may be wrong with others.

    Args:
        all_rows: print a line for each bad row, and not for the first ones of each kind alone.
        options: as ``names`` of ``as_typed_here``.
    """
    from rlhf_data.rows import MISSING_COLUMN, SHOWN, first_of_each_kind

    if report.form is not None:
        print_text(f"data: {report.form.title} ({spec}), as with --data.form {report.form.name}")
    elif report.num_bad == report.total and any(row.kind == MISSING_COLUMN for row in report.bad):
        print_text(_NO_FORM.format(spec))
    if report.unread:
        print_text(
            f"data: columns that nothing reads: {as_typed_here(report.unread, options)} ({spec})"
        )
    for row in report.bad if all_rows else first_of_each_kind(report.bad):
        print_text(f"{row.where}: {as_typed_here(row.reason, options)}")
    for kind, count in Counter(row.kind for row in report.bad).items():
        if count > SHOWN and not all_rows:
            print_text(f"  and {count - SHOWN} more: {kind} (--all lists them)")
    if report.inert.rows:
        print_text(f"warning: {report.inert.describe(report.total, spec)}")
    if report.order.rows:
        print_text(f"warning: {report.order.describe(report.total, spec)}")
    if report.duplicates:
        here, first = report.duplicates[0]
        count = len(report.duplicates)
        repeat = "row repeats" if count == 1 else "rows repeat"
        print_text(
            f"warning: {count} {repeat} the prompt of an earlier row of {spec}; {here} that of {first}"
        )


def print_summary(reports: Mapping[str, SourceReport | None], unit: str) -> None:
    """Print a table of the sets, and how many rows have a problem of each kind."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table()
    for column in ("data", "rows", "usable", "bad", f"prompt {unit}: min / median / max"):
        table.add_column(column, justify="left" if column == "data" else "right", overflow="fold")
    kinds: Counter[str] = Counter()
    for spec, report in reports.items():
        if report is None:
            table.add_row(Text(spec), "-", "-", "all", "cannot be read")
            continue
        kinds.update(row.kind for row in report.bad)
        usable = report.total - report.num_bad
        table.add_row(
            Text(spec), str(report.total), str(usable), str(report.num_bad), _spread(report)
        )
    console = Console(highlight=False)
    console.print(table)
    for kind, count in kinds.most_common():
        console.print(f"{count:>8}  {kind}", markup=False)


def print_next(
    reports: Mapping[str, SourceReport | None], model: str | None, options: Sequence[str]
) -> None:
    """Print the commands that learn from the sets, or answer them: one set of commands for each kind of rows.

    Args:
        model: the model that the user named.
        options: further words, by which the rows were read.
    """
    from rlhf_data.forms.form import commands_for

    sets: dict[RowKind, list[str]] = defaultdict(list)
    has_bad = has_images = False
    num_read_anyway = 0
    for spec, report in reports.items():
        if report is not None and report.form is not None and report.num_bad < report.total:
            sets[report.form.kind].append(spec)
            has_bad |= report.num_bad > report.num_read_anyway
            num_read_anyway += report.num_read_anyway
            has_images |= report.has_images
    words = [
        *options,
        *(_vision_words() if has_images else []),
        *(["--data.on_bad_row", "skip"] if has_bad else []),
    ]
    for kind, specs in sets.items():
        for command in commands_for(kind, specs, model=model or "MODEL", options=words):
            print_text(f"next: {command}")
    if has_bad:
        print_text("The bad rows would be left out; repair them, and leave --data.on_bad_row out.")
    if num_read_anyway:
        print_text(
            f"A run reads {num_read_anyway} of the bad rows all the same, since only a label or an id of theirs is "
            "bad, and a reward may fail at them; repair them, or take them out of the file."
        )


def _vision_words() -> list[str]:
    """Return the option of a model that sees: with the component that is installed, or a word in place of a name."""
    from rlhf_core.plugins import load

    names = load().registries["rlhf_vision_models"].names()
    return ["--model.vision", names[0] if len(names) == 1 else "NAME"]


def _spread(report: SourceReport) -> str:
    if not len(report.lengths):
        return "-"
    ordered = sorted(report.lengths.tolist())
    return f"{ordered[0]} / {ordered[len(ordered) // 2]} / {ordered[-1]}"
