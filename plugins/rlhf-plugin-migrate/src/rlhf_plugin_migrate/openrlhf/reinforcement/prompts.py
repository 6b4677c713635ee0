"""Rules of the data: sets of prompts, their shares, and how a row becomes a prompt."""

from __future__ import annotations

import string

from ..table.outcome import Outcome
from ..table.source import SourceOptions

_ALL = 1e8
"""OpenRLHF's number of samples for all of them."""
_NOT_READ = (".arrow", ".py")


def set_data(source: SourceOptions, out: Outcome) -> None:
    """Set the sets of prompts and their shares."""
    sets = [name.strip() for name in source.text("data.prompt_dataset").split(",") if name.strip()]
    if not sets:
        out.warnings.append("--data.prompt_dataset is missing: the configuration needs data.train")
    else:
        out.set("data.train", [name.partition("@")[0] for name in sets], "data.prompt_dataset")
    if folders := [name for name in sets if "@" in name]:
        out.missing(
            "data.prompt_dataset",
            f"{', '.join(folders)}: a folder within a set cannot be named, only a configuration (NAME:CONFIG); give "
            "the files",
        )
    if unread := [name for name in sets if name.endswith(_NOT_READ)]:
        out.missing(
            "data.prompt_dataset",
            f"{', '.join(unread)}: only JSONL, CSV, Parquet and saved folders are read",
        )
    if source.given("data.prompt_probs"):
        out.set("data.probabilities", source.value("data.prompt_probs"), "data.prompt_probs")
        out.differs(
            "data.prompt_probs",
            "an epoch ends before a row would come twice; OpenRLHF repeats rows of the smaller sets until all are used",
        )
    samples = source.number("data.max_samples")
    if samples < _ALL:
        out.set("data.max_samples", int(samples), "data.max_samples")
        if len(sets) > 1:
            out.differs(
                "data.max_samples", "it holds for each set; OpenRLHF's for all together, too"
            )
    else:
        out.nothing("data.max_samples", "all rows are used")
    if source.whole("data.max_images_per_prompt") == 0:
        out.nothing("data.image_key", "there are no images in the prompts")
    else:
        out.missing("data.image_key", "images are not supported yet")


def set_prompt(source: SourceOptions, out: Outcome) -> None:
    """Set the column of the prompt, and the template that is put around it."""
    key, template = source.text("data.input_key"), source.text("data.input_template")
    if source.flag("data.apply_chat_template"):
        out.set("data.chat", True, "data.apply_chat_template")
        out.nothing(
            "data.input_template", "OpenRLHF does not apply it with --data.apply_chat_template"
        )
    elif "{}" in template:
        out.set("data.template", named(template, key), "data.input_template", "data.input_key")
        if "\\n" in template:
            out.differs(
                "data.input_template",
                "it has a backslash and an n where a new line is probably meant; OpenRLHF warns of it and uses both",
            )
        return
    elif template:
        out.nothing("data.input_template", "OpenRLHF ignores a template without {}")
    out.set("data.prompt_key", key, "data.input_key")


def named(template: str, key: str) -> str:
    """Return a format string in which every ``{}`` has the name of the column."""
    found = ""
    for text, name, _, _ in string.Formatter().parse(template):
        found += text.replace("{", "{{").replace("}", "}}")
        found += "" if name is None else f"{{{name or key}}}"
    return found
