"""Description of what a run would do, for ``--dry-run``. Loads neither weights nor data."""

from __future__ import annotations

from typing import Any

from rlhf_config import ResolvedOptions
from rlhf_core.contracts import PlansPlacement
from rlhf_core.plugins import Plugins

from .options import POLICY, TRAINED_ROLES, ExampleOptions


def describe(resolved: ResolvedOptions[Any], plugins: Plugins) -> str:
    """Return components, model, data and the size of an update, in lines."""
    run: ExampleOptions = resolved.run
    lines = ["components"]
    for slot, selections in resolved.selections.items():
        for selection in selections:
            registered = selection.registered
            lines.append(f"  {slot:26} {registered.qualified} ({registered.origin})")
    lines += ["model", f"  {run.model.path}, {run.model.dtype}"]
    runtime = resolved.one("runtime.name").options
    if isinstance(runtime, PlansPlacement):
        lines.append("placement")
        role = TRAINED_ROLES.get(resolved.command, POLICY)
        lines += [f"  {line}" for line in runtime.placement([role], has_engine=False)]
    lines.append("data")
    lines.append(f"  {'train':26} {', '.join(run.data.train) or run.data.source}")
    if run.eval.holds_rows_out:
        held_out = ", ".join(run.eval.data) or f"{run.eval.fraction:.0%} of the training data"
        lines.append(f"  {'evaluation':26} {held_out}")
    steps = run.train.steps or f"{run.train.epochs} epoch(s) of the data"
    lines += [
        "one step",
        f"  {run.train.batch_size} rows of the data, sequences of up to {run.data.max_length} tokens",
        f"  steps: {steps}",
        "output",
        f"  {run.output}",
    ]
    lines += [f"plugin that could not be loaded: {failure}" for failure in plugins.failed]
    return "\n".join(lines)
