"""Description of what a run would do, for ``--dry-run``. Loads neither weights nor data."""

from __future__ import annotations

from typing import Any

from rlhf_config import ResolvedOptions, described
from rlhf_core.contracts import PlansPlacement
from rlhf_core.plugins import Plugins

from .options import POLICY, TRAINED_ROLES, ExampleOptions


def describe(resolved: ResolvedOptions[Any], plugins: Plugins) -> str:
    """Return components, model, data and the size of an update, in lines."""
    run: ExampleOptions = resolved.run
    sections = [("model", [f"{run.model.path}, {run.model.dtype}"])]
    runtime = resolved.one("runtime.name").options
    if isinstance(runtime, PlansPlacement):
        role = TRAINED_ROLES.get(resolved.command, POLICY)
        sections.append(("placement", list(runtime.placement([role], has_engine=False))))
    data = [f"{'train':26} {', '.join(run.data.train) or run.data.source}"]
    if run.eval.holds_rows_out:
        held_out = ", ".join(run.eval.data) or f"{run.eval.fraction:.0%} of the training data"
        data.append(f"{'evaluation':26} {held_out}")
    size = (
        f"{run.train.batch_size} rows of the data, sequences of up to {run.data.max_length} tokens"
    )
    steps = run.train.steps or f"{run.train.epochs} epoch(s) of the data"
    sections += [("data", data), ("one step", [size, f"steps: {steps}"]), ("output", [run.output])]
    return described(resolved, plugins, sections)
