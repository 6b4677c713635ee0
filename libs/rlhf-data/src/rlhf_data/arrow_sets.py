"""Sources that are tables of ``datasets``, memory-mapped: CSV, Parquet, ``save_to_disk`` folders and hub sets.

This module reads CSV as text, cell by cell, because a guess of types would turn the label ``007`` into 7.
"""

from __future__ import annotations

import csv
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlhf_config.checks.data_files import suffix_of
from rlhf_core.errors import DataError
from rlhf_core.problem import headline

from .arrow_rows import WrittenRows
from .files.other_files import refuse_slice
from .hub import reaching_hub
from .reading_log import log
from .source import AS_UTF8, MAX_CHARACTERS, TEMPLATE_KWARGS, Row, Source, Unreadable, row_error

if TYPE_CHECKING:
    from datasets import Dataset

_SCAN_ROWS = 1000
_TABLES = (".jsonl", ".json", ".csv", ".parquet")
"""Kinds of files with rows; a text file beside them is a licence or a note."""
_NOTES = ("dataset_info", "dataset_infos", "metadata")
"""Files beside data that say something of it."""
_SEPARATORS = (";", "\t", "|")


class ArrowRows:
    """Source of the rows of a table, without the nulls that Arrow fills objects up with.

    Args:
        dataset: the table.
        name: short name, by which results are grouped.
        place: function from a row's index to the row's place for messages.
        unreadable: rows of the file that do not fit the table, by index.

    Raises:
        DataError: the table has no rows.
    """

    def __init__(
        self,
        dataset: Dataset,
        name: str,
        place: Callable[[int], str],
        unreadable: Mapping[int, Unreadable] | None = None,
    ) -> None:
        self.name = name
        self._dataset = _without_decoding(dataset)
        self._written = WrittenRows(dataset.features)
        self._unreadable = unreadable or {}
        self.where = place
        if not len(dataset):
            raise DataError(
                f"{place(0).rpartition(':')[0]}: no rows; expected at least one",
                code="data/no-rows",
            )

    def __len__(self) -> int:
        return len(self._dataset)

    def row(self, index: int) -> Row:
        """Return the row of an index.

        Raises:
            DataError: the row cannot be read.
        """
        if bad := self._unreadable.get(index):
            raise row_error(self.where(index), bad)
        return self._written.row(self._dataset[index])

    def scan(self, columns: Sequence[str] | None = None) -> Iterator[Row | Unreadable]:
        """Yield all rows in order; with ``columns``, only these columns if the table has all of them."""
        dataset = self._dataset
        if columns and set(columns) <= set(dataset.column_names):
            given = {TEMPLATE_KWARGS} & set(dataset.column_names)
            dataset = dataset.select_columns(list(dict.fromkeys([*columns, *given])))
        names = dataset.column_names
        index = 0
        for batch in dataset.iter(batch_size=_SCAN_ROWS):
            for values in zip(*(batch[name] for name in names), strict=True):
                row = dict(zip(names, values, strict=True))
                yield self._unreadable.get(index) or self._written.row(row)
                index += 1


def open_csv(path: Path, name: str, content: Path | None = None) -> Source:
    """Open a CSV file with a header line; all values are text.

    Raises:
        DataError: there is no header, two columns share a name, or the file cannot be read.
    """
    from datasets import Dataset

    try:
        header, cells, line_numbers, unreadable = _read_csv(path, content or path)
    except OSError as error:
        raise DataError(
            f"{path}: cannot read it: {error.strerror}", code="data/unreadable-file"
        ) from error
    if not line_numbers:
        raise DataError(
            f"{path}: no rows after the header; expected at least one", code="data/no-rows"
        )
    dataset = Dataset.from_dict(dict(zip(header, cells, strict=True)))
    return ArrowRows(dataset, name, lambda index: f"{path}:{line_numbers[index]}", unreadable)


def open_parquet(path: Path, name: str) -> Source:
    """Open a Parquet file (through the cache of ``datasets``, so that it is memory-mapped).

    Raises:
        DataError: the file is not a Parquet file, or is damaged.
    """
    with _translated(str(path), "a Parquet file"):
        from datasets import load_dataset
        from pyarrow import parquet

        # The library reads in batches of as many rows as the file has, and fails at a batch of none.
        if not parquet.read_metadata(path).num_rows:
            raise DataError(f"{path}: no rows; expected at least one", code="data/no-rows")
        dataset = load_dataset("parquet", data_files=str(path), split="train")
    return ArrowRows(dataset, name, lambda index: f"{path}:row {index + 1}")


def open_folder(path: Path, name: str, split: str) -> Source:
    """Open a folder that ``save_to_disk`` wrote, or a folder of data files that ``load_dataset`` can read.

    Raises:
        DataError: the folder is neither, is damaged, or has no such split.
    """
    saved = (path / "state.json").exists() or (path / "dataset_dict.json").exists()
    by_pattern = "" if saved else _refuse_several_kinds(path)
    with _translated(str(path), "a save_to_disk folder, or one with data files", by_pattern):
        from datasets import DatasetDict, load_dataset, load_from_disk

        found = load_from_disk(str(path)) if saved else load_dataset(str(path))
        splits = {split: found} if not isinstance(found, DatasetDict) else dict(found)
    if split not in splits:
        raise DataError(
            f"{path}: no split {split!r}; it has {', '.join(splits)}. Set --data.split or --eval.split.",
            code="data/unknown-split",
        )
    if len(splits) > 1:
        log.info("%s: the split %s is read, of %s", path, split, ", ".join(splits))
    return ArrowRows(splits[split], name, lambda index: f"{path}[{split}]:row {index + 1}")


def _refuse_several_kinds(path: Path) -> str:
    """Return how a part of a folder's data files is named, for messages.

    Raises:
        DataError: the folder has data files of several kinds, of which the library would read the kind with the most
            files and leave out the others. A card with ``configs`` says what to read, so then none is left out unsaid.
    """
    kinds: dict[str, Path] = {}
    for file in sorted(path.rglob("*.*")):
        suffix = suffix_of(file.name)
        if suffix in _TABLES and file.stem not in _NOTES:
            kinds.setdefault(suffix, file.relative_to(path))
    if not kinds:
        return ""
    suffixes = sorted(kinds)
    pattern = f"'{path / f'*{suffixes[-1]}'}'"
    card = path / "README.md"
    if len({"" if "json" in suffix else suffix for suffix in suffixes}) > 1 and not (
        card.exists() and "configs:" in card.read_text(encoding="utf-8", errors="replace")
    ):
        raise DataError(
            f"{path}: expected data files of one kind, got {' and '.join(suffixes)}, such as "
            f"{' and '.join(str(kinds[suffix]) for suffix in suffixes)}. Name those to read by a pattern, as in "
            f"{pattern}",
            code="data/unknown-format",
        )
    return f"Name those of its files that have the same columns by a pattern, as in {pattern}."


def open_hub(spec: str, name: str, split: str) -> Source:
    """Open a data set of the Hugging Face hub, NAME or NAME:CONFIG, from the cache if it has the set.

    Raises:
        DataError: the hub has no such set, configuration or split, or cannot be reached.
    """
    dataset = _hub_set(spec, split)
    return ArrowRows(dataset, name, lambda index: f"{spec}[{split}]:row {index + 1}")


def reach_set(spec: str) -> None:
    """Ask whether the hub can be reached, where a data set was not downloaded earlier. Nothing is downloaded.

    Raises:
        DataError: the hub cannot be reached, and nothing of that name was downloaded earlier.
    """
    refuse_slice(spec)
    with reaching_hub(spec), _translated(spec, "a data set on the hub", _HUB_FIX):
        from datasets import load_dataset_builder
        from huggingface_hub import constants

        if constants.is_offline_mode():
            repository, _, config = spec.partition(":")
            load_dataset_builder(repository, config or None)


def hub_fingerprint(spec: str, split: str) -> str:
    """Return what ``datasets`` knows the rows of a set on the hub by.

    Raises:
        DataError: as from ``open_hub``.
    """
    fingerprint: str = _hub_set(spec, split)._fingerprint
    return fingerprint


_HUB_FIX = (
    "Check name, configuration (NAME:CONFIG) and split (--data.split, --eval.split). Without a network, "
    "save_to_disk the set elsewhere and give the folder."
)

_Table = tuple[list[str], list[list[str | None]], "array[int]", dict[int, Unreadable]]


def _read_csv(path: Path, content: Path) -> _Table:
    """Return the header, the columns, the line of each row, and the rows that do not fit."""
    line_numbers = array("i")
    unreadable: dict[int, Unreadable] = {}
    # The reader takes cells of 131 072 characters at most, unless it is told; a document may be longer.
    csv.field_size_limit(max(csv.field_size_limit(), MAX_CHARACTERS))
    # With surrogateescape, bytes that are no UTF-8 spoil only their own row, and not the file.
    with open(content, encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        reader = csv.reader(file, strict=True)
        header = _checked_header(next(_records(reader), None), path)
        columns: list[list[str | None]] = [[] for _ in header]
        before = reader.line_num
        for record in _records(reader):
            start, before = before + 1, reader.line_num
            if record == []:
                continue
            problem = (
                _unclosed(record, start, before)
                if isinstance(record, Unreadable)
                else _misfit(record, header)
            )
            if problem is not None:
                unreadable[len(line_numbers)] = problem
            values = [None] * len(header) if problem else record
            assert isinstance(values, list)
            for column, value in zip(columns, values, strict=True):
                column.append(value)
            line_numbers.append(start)
    return header, columns, line_numbers, unreadable


def _unclosed(problem: Unreadable, start: int, end: int) -> Unreadable:
    """Return the problem of a record with the lines that it swallowed, if it is more than one."""
    if end == start:
        return problem
    swallowed = f"All up to line {end} is one cell, whose quote is not closed: close it"
    return Unreadable(f"{problem.reason}. {swallowed}", problem.kind)


def _records(reader: Iterator[list[str]]) -> Iterator[list[str] | Unreadable]:
    while True:
        try:
            yield next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield Unreadable(f"broken CSV: {error}")


def _checked_header(header: list[str] | Unreadable | None, path: Path) -> list[str]:
    if not isinstance(header, list) or not header:
        reason = header.reason if isinstance(header, Unreadable) else "the first line is empty"
        raise DataError(
            f"{path}:1: expected a header line with column names; {reason}",
            code="data/malformed-header",
        )
    if any("\udc80" <= character <= "\udcff" for name in header for character in name):
        raise DataError(
            f"{path}:1: expected a header line of UTF-8 text, got other bytes. {AS_UTF8}",
            code="data/header-not-utf8",
        )
    if nul := next((name for name in header if "\0" in name), None):
        raise DataError(
            f"{path}:1: expected column names without NUL characters, got {nul!r}",
            code="data/nul-in-header",
        )
    if double := sorted({name for name in header if header.count(name) > 1}):
        raise DataError(
            f"{path}:1: two columns are called {double[0]!r}; rename one",
            code="data/repeated-column",
        )
    other = next((mark for mark in _SEPARATORS if len(header) == 1 and mark in header[0]), None)
    if other:
        raise DataError(
            f"{path}:1: expected columns separated by commas; the header has none, but {other!r}: {header[0]!r:.200}. "
            f"Write the table with commas, as by pandas.read_csv({str(path)!r}, sep={other!r}, dtype=str)"
            ".to_csv('with_commas.csv', index=False)",
            code="data/malformed-header",
        )
    return header


def _misfit(record: list[str], header: list[str]) -> Unreadable | None:
    if len(record) != len(header):
        return Unreadable(f"expected {len(header)} cells as in the header, got {len(record)}")
    if any("\udc80" <= character <= "\udcff" for cell in record for character in cell):
        return Unreadable(f"expected UTF-8 text, got other bytes. {AS_UTF8}")
    return None


def _hub_set(spec: str, split: str) -> Dataset:
    repository, _, config = spec.partition(":")
    refuse_slice(spec)
    with reaching_hub(spec), _translated(spec, "a data set on the hub", _HUB_FIX):
        from datasets import load_dataset

        return load_dataset(repository, config or None, split=split)


def _without_decoding(dataset: Dataset) -> Dataset:
    """Return the table with images, audio and the like as plain bytes and paths; JSON is read as what it says."""
    import datasets

    json_text = getattr(
        datasets, "Json", ()
    )  # None of the older versions of the library has this type.
    for column, feature in dataset.features.items():
        if getattr(feature, "decode", False) is True and not isinstance(feature, json_text):
            dataset = dataset.cast_column(column, type(feature)(decode=False))
    return dataset.with_format(None)


@contextmanager
def _translated(what: str, expected: str, fix: str = "") -> Iterator[None]:
    """Turn the errors of ``datasets`` into ours, and keep its progress bars and its log of them out of the way."""
    import datasets

    verbosity = datasets.logging.get_verbosity()
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)
    shown = not datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        yield
    except DataError:
        raise
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        cause: Any = error.__cause__ or error
        text = f"{what}: expected {expected}; loading it failed with {type(cause).__name__}: {headline(cause)}"
        raise DataError(f"{text}\n  {fix}" if fix else text, code="data/unreadable-file") from error
    finally:
        datasets.logging.set_verbosity(verbosity)
        if shown:
            datasets.enable_progress_bars()
