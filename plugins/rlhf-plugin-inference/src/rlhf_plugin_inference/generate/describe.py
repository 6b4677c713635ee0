"""Description of what would be generated, for ``--dry-run``. Loads neither weights nor data."""

from __future__ import annotations

from typing import Any

from rlhf_config import ResolvedOptions
from rlhf_core.plugins import Plugins

from .options import GenerateOptions


def describe(resolved: ResolvedOptions[Any], plugins: Plugins) -> str:
    """Return components, model, data and the number of completions, in lines."""
    run: GenerateOptions = resolved.run
    lines = ["components"]
    for slot, selections in resolved.selections.items():
        for selection in selections:
            registered = selection.registered
            lines.append(f"  {slot:26} {registered.qualified} ({registered.origin})")
    adapter = f", with the adapter {run.model.adapter}" if run.model.adapter else ""
    count = run.rollout.n_samples_per_prompt
    lines += [
        "model",
        f"  {run.model.path}, {run.model.dtype}{adapter}",
        "data",
        f"  {', '.join(run.data.train)}",
        "each prompt",
        f"  {count} completion{'s' if count > 1 else ''} of up to {run.rollout.max_new_tokens} tokens",
        f"  chosen: {run.select.mode}",
        "output",
        f"  {run.output}",
    ]
    lines += [f"plugin that could not be loaded: {failure}" for failure in plugins.failed]
    return "\n".join(lines)
