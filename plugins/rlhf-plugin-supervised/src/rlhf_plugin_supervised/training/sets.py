"""Rows of a command: those to train on, and the metrics of held-out ones, by set and of all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from rlhf_config import ResolvedOptions
from rlhf_data import (
    ExampleSets,
    HeldOutSets,
    LearnedRows,
    SequenceOptions,
    Side,
    load_example_sets,
)
from rlhf_trainer.runs import image_reader

from .options import ExampleOptions
from .seen import ModelNumbers
from .trainer import renderer_of
from .update import Evaluated, Update

MetricsOf = Callable[[NDArray[np.int64]], Mapping[str, float]]
"""Function from indices of held-out rows to their metrics by name, such as ``nll``."""


class Loader(Protocol):
    """``rlhf_data.load_conversations`` or one of its siblings."""

    def __call__(
        self, sets: Sequence[str], columns: Any, options: SequenceOptions, *args: Any, **named: Any
    ) -> LearnedRows: ...


def load_sets(resolved: ResolvedOptions[Any], loader: Loader) -> ExampleSets:
    """Return the rows of a run's options.

    Raises:
        DataError: as from ``rlhf_data.load_example_sets``.
    """
    run: ExampleOptions = resolved.run
    images = image_reader(resolved)
    if images is not None:
        # Rows that are held out are compared with those to train on.
        images = images.taking_on_use(compares=run.eval.holds_rows_out)
    renderer, eos = renderer_of(run, images)

    def load(
        sets: Sequence[str], options: SequenceOptions, *, option: str, side: Side
    ) -> LearnedRows:
        return loader(
            sets, run.data, options, renderer, eos=eos, option=option, images=images, side=side
        )

    sets = load_example_sets(load, run.data.train, run.data, run.eval)
    return replace(sets, images=None if images is None else images.on_use)


def evaluated(
    held_out: HeldOutSets, metrics_of: MetricsOf, update: Update, outputs: ModelNumbers
) -> Evaluated:
    """Return the evaluation of held-out rows; see ``Evaluated`` for the last two."""
    metrics = held_out_metrics(held_out, metrics_of)
    return Evaluated(metrics=metrics, sets=held_out.sets, update=update, outputs=outputs)


def held_out_metrics(held_out: HeldOutSets, metrics_of: MetricsOf) -> dict[str, float]:
    """Return the metrics of all held-out rows, ``eval/NAME``, and of each set, ``eval/SET/NAME``."""
    everything = np.arange(len(held_out.rows))
    found = {f"eval/{name}": value for name, value in metrics_of(everything).items()}
    for set_name, rows in held_out.sets.items():
        found |= {f"eval/{set_name}/{name}": value for name, value in metrics_of(rows).items()}
    return found
