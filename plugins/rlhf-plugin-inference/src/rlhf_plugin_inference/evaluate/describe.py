"""Description of what would be evaluated, for ``--dry-run``. Loads neither weights nor data."""

from __future__ import annotations

from typing import Any

from rlhf_config import ResolvedOptions
from rlhf_core.plugins import Plugins

from .options import EvalOptions


def describe(resolved: ResolvedOptions[Any], plugins: Plugins) -> str:
    """Return components, model, tasks and the number of episodes, in lines."""
    run: EvalOptions = resolved.run
    lines = ["components"]
    for slot, selections in resolved.selections.items():
        for selection in selections:
            registered = selection.registered
            lines.append(f"  {slot:26} {registered.qualified} ({registered.origin})")
    model = f"{run.model.path}, {run.model.dtype}"
    if run.remote.url is not None:
        model = f"{run.remote.model}, at {run.remote.url}"
    temperatures = ", ".join(f"{temperature:g}" for temperature in run.eval.temperatures)
    lines += [
        "model",
        f"  {model}",
        "tasks",
        f"  {', '.join(run.data.train or run.env.use)}",
        "each task",
        f"  {run.eval.n_samples} episodes at temperature {temperatures}",
        "output",
        f"  {run.output}",
    ]
    lines += [f"plugin that could not be loaded: {failure}" for failure in plugins.failed]
    return "\n".join(lines)
