"""Held-out rows that the run trains on, by what the model reads of them."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import numpy as np

from rlhf_core.errors import DataError

from .sides import Hashes

log = logging.getLogger(__name__)


def refuse_trained_rows(trained: Hashes, sets: Mapping[str, Hashes], option: str) -> None:
    """Say of each held-out set how many of its rows the run trains on.

    Args:
        trained: hash of what the model reads of each training row.
        sets: the same of the rows of each held-out set, by name.
        option: option that names the sets, for messages.

    Raises:
        DataError: the run trains on all held-out rows.
    """
    both = {name: int(np.isin(hashes, trained).sum()) for name, hashes in sets.items()}
    if all(both[name] == len(hashes) for name, hashes in sets.items()):
        counted = ", ".join(f"{count} of {count} of {name!r}" for name, count in both.items())
        raise DataError(
            f"{option}: expected rows that the run does not train on; all are training rows too, by what the model "
            f"reads ({counted}).\n  Name other rows with --eval.data, or another split of a folder or a set of the hub "
            "with --eval.split; or leave --eval.data out and hold some of the training rows out with --eval.fraction "
            "0.1.",
            code="data/held-out-rows-train",
        )
    for name, count in both.items():
        if count:
            log.warning(
                "%s: the run also trains on %d of the %d rows of the held-out set %r, by what the model reads",
                option,
                count,
                len(sets[name]),
                name,
            )
