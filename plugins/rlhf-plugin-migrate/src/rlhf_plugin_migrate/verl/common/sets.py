"""Files of rows, as verl's keys name them."""

from __future__ import annotations

from ...table.outcome import Outcome
from ...table.source import SourceOptions
from .trainer import names_of


def set_files(source: SourceOptions, out: Outcome, train: str, held_out: str) -> None:
    """Set training files and held-out files, each with a name.

    Args:
        train: key of training files.
        held_out: key of held-out files.
    """
    out.set("data.train", names_of(source, train), train)
    if files := names_of(source, held_out):
        out.set("eval.data", named(files), held_out)
        if same := sorted(set(files) & set(names_of(source, train))):
            out.differs(
                held_out,
                f"a run that trains on all of its held-out rows is refused, and {', '.join(same)} is both: name "
                "others in eval.data, or hold a share out with eval.fraction",
            )
    else:
        out.nothing(held_out, "there are no held-out rows")


def set_files_of_rows(source: SourceOptions, out: Outcome) -> None:
    """Set training files and held-out files, and how many of their rows count."""
    set_files(source, out, "data.train_files", "data.val_files")
    for key, path in (("data.train_max_samples", "data"), ("data.val_max_samples", "eval")):
        limit = source.whole(key)
        if limit > 0:
            out.set(f"{path}.max_samples", limit, key)
            out.differs(
                key,
                "the first rows of each file are used; verl draws them from all rows where it shuffles",
            )
        else:
            out.nothing(key, "all rows are used")


def set_template(source: SourceOptions, out: Outcome) -> None:
    """Set the variables of the chat template."""
    key = "data.apply_chat_template_kwargs"
    value = source.value(key)
    if isinstance(value, dict) and value:
        for name, one in value.items():
            out.set(f"data.chat_template_kwargs.{name}", one, key)
    elif value:
        out.missing(key, "expected an object with the variables of the chat template")
    else:
        out.nothing(key, "there are none")


def named(files: list[str]) -> list[str]:
    """Return held-out files with names: that of the file or, if it is ``test`` or the like, that of its folder."""
    names: list[str] = []
    for file in files:
        folder, _, last = file.rpartition("/")
        name = last.partition(".")[0]
        if name in ("test", "val", "validation", "train"):
            name = folder.rpartition("/")[2] or name
        name = (
            "".join(letter if letter.isalnum() or letter in "-_" else "_" for letter in name)
            or "held_out"
        )
        names.append(name if name not in names else f"{name}_{len(names) + 1}")
    return [f"{name}={file}" for name, file in zip(names, files, strict=True)]
