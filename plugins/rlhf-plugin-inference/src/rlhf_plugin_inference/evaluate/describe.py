"""Description of what would be evaluated, for ``--dry-run``. Loads neither weights nor data."""

from __future__ import annotations

from typing import Any

from rlhf_config import ResolvedOptions, described
from rlhf_core.plugins import Plugins

from .options import EvalOptions


def describe(resolved: ResolvedOptions[Any], plugins: Plugins) -> str:
    """Return components, model, tasks and the number of episodes, in lines."""
    run: EvalOptions = resolved.run
    model = f"{run.model.path}, {run.model.dtype}"
    if run.remote.url is not None:
        model = f"{run.remote.model}, at {run.remote.url}"
    temperatures = ", ".join(f"{temperature:g}" for temperature in run.eval.temperatures)
    sections = [
        ("model", [model]),
        ("tasks", [", ".join(run.data.train or run.env.use)]),
        ("each task", [f"{run.eval.n_samples} episodes at temperature {temperatures}"]),
        ("output", [run.output]),
    ]
    return described(resolved, plugins, sections)
