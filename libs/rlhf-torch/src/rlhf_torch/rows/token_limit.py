"""The most tokens of a micro-batch, which falls by half whenever the device's memory did not suffice for one.

What is computed in micro-batches is computed anew then, and where a recomputed layer did not take its own graph.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch
from torch.utils import checkpoint

from rlhf_core import CheckpointError
from rlhf_core.outside.json_reader import parse_object

from ..training.host_memory import release_cached

log = logging.getLogger(__name__)

FILE = "micro_batches.json"
"""File of a checkpoint in which a limit stands that has fallen."""

ATTEMPTS = 4
"""Times that gradients are computed until each recomputed layer takes the graph of its forward pass."""

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

        It is called again some times, too, where a layer was recomputed by another graph than its forward pass. Two
        compiled graphs of a layer may both fit its inputs, and torch takes the one that it used last; and a pass that
        compiles keeps other tensors than the next. Both settle, as graphs that are there are taken again.

        Args:
            compute: computes everything anew in micro-batches of ``tokens``.
            total: tokens of all rows; 0: what has failed cannot be computed anew.
            longest: tokens of the longest row, or of the longest rows that stay together: no micro-batch has fewer.

        Raises:
            torch.OutOfMemoryError: memory does not suffice for the longest row either; a note says what to change.
            torch.utils.checkpoint.CheckpointError: graphs differ each time; a note says what to turn off.
        """
        unlike = 0
        while True:
            try:
                return compute()
            except checkpoint.CheckpointError as error:
                unlike += 1
                if unlike == ATTEMPTS or not total:
                    error.add_note(UNLIKE_GRAPHS)
                    raise
                log.info(
                    "a layer was recomputed by another compiled graph; gradients are computed again"
                )
                continue
            except torch.OutOfMemoryError as error:
                if not total:
                    error.add_note(SMALLER_MICRO_BATCHES.format(self.tokens))
                    raise
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


UNLIKE_GRAPHS = (
    "Layers are compiled and recomputed, and what a layer keeps differs. Turn one of them off: gradient_checkpointing "
    "of the backend, or its compile together with the engine's (--engine.embedded.compile false)."
)

SMALLER_MICRO_BATCHES = (
    "Micro-batches had up to {} tokens, and the ranks of this backend cannot begin a pass again. Set "
    "--train.max_tokens_per_micro_batch lower; rlhf plan says what fits."
)


def _no_way_out(longest: int) -> str:
    return (
        f"The longest sequence has {longest} tokens, and memory does not suffice for it alone. Recompute activations "
        "(gradient_checkpointing of the backend), train fewer tokens (--rollout.max_new_tokens), or fewer weights "
        "(--actor.adapter lora); rlhf plan says what fits."
    )
