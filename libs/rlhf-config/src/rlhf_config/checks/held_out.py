"""Rules about held-out rows that every command has which evaluates while it trains."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from rlhf_core.errors import ConfigError

from ..common import HeldOutRows
from ..option_tree import NamedPaths
from ..problems import Labels
from .data_files import SUFFIXES, set_name, suffix_of


def held_out_problems(
    evaluation: HeldOutRows, train: Sequence[str], labels: Labels
) -> Iterator[ConfigError]:
    """Yield the contradictions among the options of held-out rows.

    Args:
        train: sets of ``data.train``.
    """
    if evaluation.data and evaluation.fraction:
        yield ConfigError(
            f"{labels('eval.data')} and {labels('eval.fraction')}: give held-out sets, or a share of the training "
            "data to hold out, not both",
            code="config/two-kinds-of-held-out",
        )
    if evaluation.fraction and not train:
        yield ConfigError(
            f"{labels('eval.fraction')}: there is no training data to hold a share out of; add --data FILE",
            code="config/nothing-to-hold-out",
        )
    names = [
        name for name, equals, _ in (source.partition("=") for source in evaluation.data) if equals
    ]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        yield ConfigError(
            f"{labels('eval.data')}: two sets are called {twice[0]!r}; give each a name of its own",
            code="config/set-name-twice",
        )


def held_out_without_effect(
    evaluation: HeldOutRows, otherwise: frozenset[str] | None = frozenset()
) -> Iterator[tuple[str, str]]:
    """Yield the options of evaluations that change nothing, each with the reason.

    Args:
        otherwise: options that count without held-out rows; None: all do, since the run may be evaluated otherwise.
    """
    if not evaluation.holds_rows_out and otherwise is not None:
        # An interval of 0 says what is so, over a file that has another one.
        names = type(evaluation).model_fields.keys() - {"data", "fraction"} - otherwise
        if "every" in names and evaluation.every == 0:
            names -= {"every"}
        for path in (*(f"eval.{name}" for name in names), "checkpoint.best_mode"):
            yield (
                path,
                "there is nothing to evaluate on. Add --eval.data FILE or --eval.fraction 0.05.",
            )
    if not evaluation.data:
        yield "eval.split", "it is the split of --eval.data, which is not given."


def splits_without_effect(
    train: Sequence[str], evaluation: HeldOutRows
) -> Iterator[tuple[str, str]]:
    """Yield the options of splits whose sets are all files, which have none, each with the reason.

    Args:
        train: all sets that are read by ``data.split``.
    """
    named = [source for _, source in held_out_paths(evaluation)]
    for path, sets in (("data.split", train), ("eval.split", named)):
        if sets and all(suffix_of(one) in SUFFIXES and not os.path.isdir(one) for one in sets):
            yield path, f"{sets[0]} is a file, which has no splits. Leave it out, or give a folder."


def held_out_paths(evaluation: HeldOutRows) -> NamedPaths:
    """Yield the sets of ``eval.data`` without their names."""
    for source in evaluation.data:
        yield "eval.data", _without_name(source)


def _without_name(source: str) -> str:
    """Return ``PATH`` of ``NAME=PATH``. An existing file may itself have ``=`` in its name."""
    return source if os.path.exists(source) else source.partition("=")[2] or source


def set_names(evaluation: HeldOutRows, train: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the held-out sets of a run, each once."""
    entries = evaluation.data or (train if evaluation.fraction else ())
    return tuple(dict.fromkeys(map(set_name, entries)))
