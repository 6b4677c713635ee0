"""Options that a replay may change: those that say what is learned from samples, not which samples there are."""

from __future__ import annotations

from collections.abc import Collection

LEARNING = ("algo", "actor", "critic", "reward", "rollout.filters")
"""Sections of options that say what is learned from samples."""
LEARNING_OF_STEP = ("train.batch_size", "train.inner_epochs", "train.max_tokens_per_micro_batch")
_HELD = ("optim", "adapter")
"""Options of a role that a checkpoint holds fast."""


def is_within(path: str, sections: Collection[str]) -> bool:
    """Return whether an option is one of these, or in one of these sections."""
    return any(path == section or path.startswith(f"{section}.") for section in sections)


def offered(path: str, value: str, *, has_rollouts: bool) -> bool:
    """Return whether a page offers an option to be changed: a single value that a replay does not refuse by its name.
    Of runs on examples the checkpoint holds all but the section ``actor``.

    Args:
        value: its value in the run, as text; lists are JSON.
    """
    sections = (*LEARNING, *LEARNING_OF_STEP) if has_rollouts else ("actor",)
    held = path.split(".", 1)[-1] in _HELD
    return is_within(path, sections) and not held and not value.startswith("[")
