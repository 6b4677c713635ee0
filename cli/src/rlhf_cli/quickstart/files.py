"""Files of ``rlhf quickstart``: rows of digit strings to reverse, a reward, a random model, and options of a run."""

from __future__ import annotations

import json
import random
from importlib.resources import files
from pathlib import Path

from rlhf_core.errors import ConfigError

ALPHABET = "0123456789="
"""The characters of prompts and answers."""
HERE = "FOLDER"
"""The word of ``run.toml`` for the folder that is written."""


def write(folder: Path) -> None:
    """Write a folder from which ``rlhf train -c FOLDER/run.toml`` trains; ``run.toml`` comes last.

    Raises:
        ConfigError: the folder's name cannot stand in ``run.toml``, or the kit that makes tiny models is not installed.
    """
    if set(str(folder)) & set('"\\:=\n'):
        raise ConfigError(
            f"--folder is {str(folder)!r}; expected a path without quotes, backslashes, ':' and '=': "
            "it is written into run.toml, where a colon separates a file from a function",
            code="output/cannot-create",
        )
    folder.mkdir(parents=True, exist_ok=True)
    write_task(folder)
    for name in ("reward.py", "run.toml"):
        text = files(__package__).joinpath(name).read_text(encoding="utf-8")
        if name == "run.toml":
            text = text.replace(HERE, str(folder))
        (folder / name).write_text(text, encoding="utf-8")


def write_task(
    folder: Path, *, digits: int = 3, held_out: int = 128, hidden_size: int = 64, seed: int = 0
) -> int:
    """Write ``train.jsonl``, ``test.jsonl`` and ``model/``, and return the number of training rows.

    Held-out strings do not occur in the training rows. Equal arguments write equal files.

    Args:
        digits: length of the strings; all ``10 ** digits`` of them are used.
        held_out: strings of ``test.jsonl``.
        hidden_size: width of the model, which has random weights.
        seed: seed of the shuffle and of the weights.

    Raises:
        ConfigError: the kit that makes tiny models is not installed.
    """
    try:
        from rlhf_testing.tiny import write_tiny_model
    except ModuleNotFoundError as error:
        raise ConfigError(
            "the quickstart's model is made by rlhf-testing, which is not installed: pip install 'rlhf-cli[check]'",
            code="plugin/missing-dependency",
        ) from error

    strings = [f"{number:0{digits}d}" for number in range(10**digits)]
    random.Random(seed).shuffle(strings)
    _write_rows(folder / "test.jsonl", strings[:held_out])
    _write_rows(folder / "train.jsonl", strings[held_out:])
    write_tiny_model(
        folder / "model",
        alphabet=ALPHABET,
        hidden_size=hidden_size,
        num_layers=2,
        num_heads=4,
        initializer_range=0.08,
        seed=seed,
    )
    return len(strings) - held_out


def _write_rows(path: Path, strings: list[str]) -> None:
    rows = ({"prompt": f"{digits}=", "answer": digits[::-1]} for digits in strings)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
