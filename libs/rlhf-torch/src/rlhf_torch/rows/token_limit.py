"""The most tokens of a micro-batch, which falls by half whenever the device's memory did not suffice for one."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch

from rlhf_core import CheckpointError
from rlhf_core.outside.json_reader import parse_object

from ..training.host_memory import release_cached

log = logging.getLogger(__name__)

FILE = "micro_batches.json"
"""File of a checkpoint in which a limit stands that has fallen."""

ResultT = TypeVar("ResultT")


class TokenLimit:
    """Tokens that the micro-batches of one role may have.

    Losses are divided by totals of the whole update, so the gradient is the same in whichever micro-batches it is
    computed. A limit that has fallen stays, also in a resumed run, whose micro-batches are then those of the run that
    was saved.

    Args:
        asked: tokens that the run's options give.
    """

    def __init__(self, asked: int, device: torch.device) -> None:
        self.tokens = asked
        self._asked = asked
        self._device = device

    def within(self, compute: Callable[[], ResultT], total: int, longest: int) -> ResultT:
        """Return what ``compute`` returns, called again with half of the limit as often as memory runs out.

        Args:
            compute: computes everything anew in micro-batches of ``tokens``.
            total: tokens of all rows.
            longest: tokens of the longest row, or of the longest rows that stay together: no micro-batch has fewer.

        Raises:
            torch.OutOfMemoryError: memory does not suffice for the longest row either; a note says what to change.
        """
        while True:
            try:
                return compute()
            except torch.OutOfMemoryError as error:
                held = min(self.tokens, total)
                if held <= longest:
                    error.add_note(_no_way_out(longest))
                    raise
            # Outside of the except block: the error holds the frames, and they the tensors, of what has failed.
            release_cached(self._device)
            self.tokens = max(held // 2, longest)
            log.warning(
                "out of memory with micro-batches of up to %d tokens: from now on they have at most %d, with the same "
                "gradients; set --train.max_tokens_per_micro_batch %d to begin with it",
                held,
                self.tokens,
                self.tokens,
            )

    def save(self, folder: Path) -> None:
        """Write a limit that has fallen into a checkpoint's folder."""
        if self.tokens != self._asked:
            text = json.dumps({"asked": self._asked, "tokens": self.tokens})
            (folder / FILE).write_text(text, encoding="utf-8")

    def load(self, folder: Path) -> None:
        """Take back the limit of a checkpoint, unless the run asks for another one than the run that was saved.

        Raises:
            CheckpointError: the file is damaged.
        """
        path = folder / FILE
        if not path.exists():
            return
        try:
            saved = parse_object(path.read_bytes())
            asked, tokens = int(saved["asked"]), int(saved["tokens"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(
                f"{path}: cannot be read: {error}", code="checkpoint/unreadable"
            ) from error
        if asked == self._asked:
            self.tokens = tokens


def _no_way_out(longest: int) -> str:
    return (
        f"The longest sequence has {longest} tokens, and memory does not suffice for it alone. Recompute activations "
        "(gradient_checkpointing of the backend), train fewer tokens (--rollout.max_new_tokens), or fewer weights "
        "(--actor.adapter lora); rlhf plan says what fits."
    )
