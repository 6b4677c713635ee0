"""Sets of rows that a Python script loads with ``load_dataset``, as keys of TRL's scripts."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

from .arguments import arguments_of, called, shown, text_of
from .names import Names
from .script_keys import PythonScript

_POSITIONS = ("path", "name", "data_dir", "data_files", "split", "cache_dir")
_READ = frozenset({"path", "name", "split", "data_files"})
_FORMATS = frozenset({"json", "csv", "parquet"})
"""First words of ``load_dataset`` that are a format of files, whose rows are the same here."""
_OTHER_FORMATS = frozenset({"text", "arrow", "pandas", "xml", "webdataset", "imagefolder"})
"""First words that are a format too, and no name of a set. Of ``text`` a line is a row there, and a file here."""
_READS_THE_SAME = frozenset(
    {
        *("num_proc", "cache_dir", "token", "streaming", "keep_in_memory", "trust_remote_code"),
        *("download_mode", "verification_mode", "storage_options"),
    }
)
"""Arguments of ``load_dataset`` that change how rows are read, and no row."""
_UNSHOWN_ROWS = (
    "the text does not show its rows; write them with its to_json(FILE), and name FILE in {}"
)


@dataclass(slots=True)
class _Set:
    """A call of ``load_dataset``, with a split that is taken of what it returns."""

    path: ast.expr
    config: ast.expr | None = None
    split: ast.expr | None = None
    files: ast.expr | None = None
    others: list[tuple[str, ast.expr]] = field(default_factory=list)
    """Arguments that change rows, and have no counterpart."""

    def is_split_of(self, other: _Set, names: Names) -> bool:
        """Return whether two sets differ in nothing but their split."""

        def parts(one: _Set) -> list[str]:
            shared = [one.path, one.config, one.files]
            known = ["" if value is None else shown(names.resolved(value)) for value in shared]
            return [*known, *sorted(f"{key}={shown(value)}" for key, value in one.others)]

        return parts(self) == parts(other)


def set_train(out: PythonScript, value: ast.expr) -> None:
    """Set the training set."""
    found = _set_of(value, out.names)
    if found is None:
        out.leave_out("train_dataset", value, _UNSHOWN_ROWS.format("data.train"))
    elif _is_of_files(found, out.names):
        path, problem = (
            _the_file(found, out.names),
            _problem_of_files(found, out.names, "data.train"),
        )
        if path is None or found.others:
            out.leave_out("train_dataset", value, problem)
        else:
            out.set("dataset_name", path)
    else:
        _leave_others_out(out, "train_dataset", found, "data.train")
        out.set("dataset_name", found.path)
        if found.config is not None:
            out.set("dataset_config", found.config)
        if found.split is not None:
            out.set("dataset_train_split", found.split)


def set_held_out(out: PythonScript, value: ast.expr, train: ast.expr | None) -> None:
    """Set the held-out set, which is a split of the training set.

    Args:
        train: the training set; None: the script gives none.
    """
    key = "eval_dataset"
    found = _set_of(value, out.names)
    trained = None if train is None else _set_of(train, out.names)
    if found is None:
        out.leave_out(key, value, _UNSHOWN_ROWS.format("eval.data"))
    elif _is_of_files(found, out.names):
        out.leave_out(key, value, _problem_of_files(found, out.names, "eval.data"))
    else:
        _leave_others_out(out, key, found, "eval.data")
        if found.split is None or trained is None or not found.is_split_of(trained, out.names):
            problem = "it is not a split of the training set; name its rows in eval.data"
            out.leave_out(key, value, problem)
        else:
            out.set("dataset_test_split", found.split)


def _set_of(value: ast.expr, names: Names) -> _Set | None:
    """Return the set that an expression loads; None for any other expression."""
    loaded = names.resolved(value)
    split: ast.expr | None = None
    if isinstance(loaded, ast.Subscript):
        split = loaded.slice
        loaded = names.resolved(loaded.value)
    if not isinstance(loaded, ast.Call) or called(loaded) != "load_dataset":
        return None
    given = [
        (name, one)
        for name, one in arguments_of(loaded, _POSITIONS, names)
        if name not in _READS_THE_SAME
    ]
    taken = dict(given)
    if "path" not in taken or (
        split is not None and ("split" in taken or not _is_name(split, names))
    ):
        return None
    return _Set(
        taken["path"],
        config=taken.get("name"),
        split=split or taken.get("split"),
        files=taken.get("data_files"),
        others=[(name, one) for name, one in given if name not in _READ],
    )


def _is_name(split: ast.expr, names: Names) -> bool:
    """Return whether what is taken of sets by split is one split, and not rows by number or a column."""
    return bool(text_of(names.resolved(split)))


def _is_of_files(found: _Set, names: Names) -> bool:
    return (
        found.files is not None or text_of(names.resolved(found.path)) in _FORMATS | _OTHER_FORMATS
    )


def _leave_others_out(out: PythonScript, key: str, found: _Set, option: str) -> None:
    for other, value in found.others:
        problem = (
            "this argument of load_dataset has no counterpart; where it changes the rows, name "
            f"them in {option}"
        )
        out.leave_out(f"{key}, {other}", value, problem)


def _problem_of_files(found: _Set, names: Names, option: str) -> str:
    split = None if found.split is None else names.resolved(found.split)
    if found.others:
        listed = ", ".join(sorted({name for name, _ in found.others}))
        return f"{listed} of load_dataset has no counterpart; name its files in {option}"
    if split is not None and not isinstance(split, ast.Constant):
        return f"the text does not show its split; name its files in {option}"
    return f"name its files in {option}"


def _the_file(found: _Set, names: Names) -> ast.expr | None:
    """Return the one file of ``load_dataset("json", data_files=FILE, split="train")``; None where it is not one whole
    file. Of files by split it is the one of the split."""
    split = None if found.split is None else names.resolved(found.split)
    files = None if found.files is None else names.resolved(found.files)
    if split is not None and not isinstance(split, ast.Constant):
        return None
    named = text_of(split)
    if isinstance(files, ast.Dict):
        by_split = {text_of(key): one for key, one in zip(files.keys, files.values, strict=True)}
        files = names.resolved(by_split.get(named, files)) if named else None
    elif named not in ("", "train"):
        return None
    is_file = files is not None and bool(text_of(files))
    return files if is_file and text_of(names.resolved(found.path)) in _FORMATS else None
