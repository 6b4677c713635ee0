"""The command ``rlhf eval`` in its two forms: ``rlhf eval MODEL`` and ``rlhf eval compare A B``."""

from __future__ import annotations

from collections.abc import Sequence


def run_eval(words: Sequence[str]) -> int:
    """Run ``rlhf eval WORDS`` and return the exit code."""
    # Imported here: each form needs its own room alone.
    if words and words[0] == "compare":
        from .comparing.command import compare

        return compare(words[1:])
    from .evaluate.command import evaluate

    return evaluate(words)
