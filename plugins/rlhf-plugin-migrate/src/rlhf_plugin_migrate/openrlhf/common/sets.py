"""Rules of the training sets, and of the template around a prompt."""

from __future__ import annotations

import string

from ...table.outcome import Outcome
from ...table.source import SourceOptions

_NOT_READ = (".arrow", ".py")


def names_of_sets(source: SourceOptions, name: str) -> list[str]:
    """Return the sets that a flag names, with commas between them."""
    return [part.strip() for part in source.text(name).split(",") if part.strip()]


def set_training_sets(
    source: SourceOptions, out: Outcome, flag: str, shares: str, limit: float
) -> None:
    """Set the training sets, their shares and the number of their rows.

    Args:
        flag: name of the flag with the sets.
        shares: name of the flag with their shares.
        limit: number of samples from which on OpenRLHF uses all of them.
    """
    sets = names_of_sets(source, flag)
    if not sets:
        out.warnings.append(f"--{flag} is missing: the configuration needs data.train")
    else:
        out.set("data.train", [name.partition("@")[0] for name in sets], flag)
    note_unread_sets(out, flag, sets)
    if source.given(shares):
        out.copy("data.probabilities", shares)
        out.differs(
            shares,
            "an epoch ends before a row would come twice; OpenRLHF repeats rows of the smaller sets until all are used",
        )
    samples = source.number("data.max_samples")
    if samples < limit:
        out.set("data.max_samples", int(samples), "data.max_samples")
        if len(sets) > 1:
            out.differs(
                "data.max_samples", "it holds for each set; OpenRLHF's for all together, too"
            )
    else:
        out.nothing("data.max_samples", "all rows are used")


def note_unread_sets(out: Outcome, flag: str, sets: list[str]) -> None:
    """Note the sets of a flag that cannot be read here."""
    if folders := [name for name in sets if "@" in name]:
        out.missing(
            flag,
            f"{', '.join(folders)}: a folder within a set cannot be named, only a configuration (NAME:CONFIG); give "
            "the files",
        )
    if unread := [name for name in sets if name.endswith(_NOT_READ)]:
        out.missing(
            flag, f"{', '.join(unread)}: only JSONL, CSV, Parquet and saved folders are read"
        )


def set_template(source: SourceOptions, out: Outcome, key_flag: str) -> bool:
    """Set the template around the prompt if OpenRLHF applies one, and return whether it does.

    Args:
        key_flag: name of the flag with the prompt's column.
    """
    flag, template = "data.input_template", source.text("data.input_template")
    if source.flag("data.apply_chat_template"):
        out.nothing(flag, "OpenRLHF does not apply it with --data.apply_chat_template")
    elif "{}" in template:
        out.set("data.template", named(template, source.text(key_flag)), flag, key_flag)
        if "\\n" in template:
            out.differs(
                flag,
                "it has a backslash and an n where a new line is probably meant; OpenRLHF warns of it and uses both",
            )
        return True
    elif template:
        out.nothing(flag, "OpenRLHF ignores a template without {}")
    else:
        out.nothing(flag, "there is no template")
    return False


def named(template: str, key: str) -> str:
    """Return a format string in which every ``{}`` has the name of the column."""
    found = ""
    for text, name, _, _ in string.Formatter().parse(template):
        found += text.replace("{", "{{").replace("}", "}}")
        found += "" if name is None else f"{{{name or key}}}"
    return found
