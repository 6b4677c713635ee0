"""The command that lists all bad rows of a run's sets, with the options of the run by which they are bad."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from rlhf_config.run import PromptData

_READ_BY = (
    "form",
    "prompt_key",
    "template",
    "system_prompt",
    "split",
    "image_key",
    "max_images",
    "max_image_pixels",
    "max_image_bytes",
)
_SWITCHES = ("chat", "allow_image_urls")
_OF_TOKENS = ("max_prompt_tokens", "control_words")
"""Options that ``rlhf data check`` reads together with a model."""


def listing_command(data: PromptData, sources: Sequence[str], model: str | None) -> str:
    """Return ``rlhf data check --all`` for the sets of a run, which finds the rows that the run could not use.

    Args:
        data: options of the run; those that are as by default are left out.
        model: folder or hub name of the tokenizer; None: what needs one is left out.
    """
    usual = type(data)()
    words = []
    for name in (*_READ_BY, *(_OF_TOKENS if model else ())):
        value = getattr(data, name, None)
        if name == "max_prompt_tokens" or value != getattr(usual, name, None):
            words += [f"--{name.replace('_', '-')}", str(value)]
    words += [f"--{name.replace('_', '-')}" for name in _SWITCHES if getattr(data, name, False)]
    words += ["--model", model] if model else []
    return f"rlhf data check --all {shlex.join([*words, *sources])}"
