"""Description of what would be generated, for ``--dry-run``. Loads neither weights nor data."""

from __future__ import annotations

from typing import Any

from rlhf_config import ResolvedOptions, described
from rlhf_core.plugins import Plugins

from .options import GenerateOptions


def describe(resolved: ResolvedOptions[Any], plugins: Plugins) -> str:
    """Return components, model, data and the number of completions, in lines."""
    run: GenerateOptions = resolved.run
    adapter = f", with the adapter {run.model.adapter}" if run.model.adapter else ""
    count = run.rollout.n_samples_per_prompt
    each = (
        f"{count} completion{'s' if count > 1 else ''} of up to {run.rollout.max_new_tokens} tokens"
    )
    sections = [
        ("model", [f"{run.model.path}, {run.model.dtype}{adapter}"]),
        ("data", [", ".join(run.data.train)]),
        ("each prompt", [each, f"chosen: {run.select.mode}"]),
        ("output", [run.output]),
    ]
    return described(resolved, plugins, sections)
