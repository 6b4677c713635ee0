"""Bytes that are live at once in operations on tensors without numbers."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from .without_numbers import storage


@dataclass(slots=True)
class Live:
    """Bytes of storages that operations made."""

    now: int = 0
    """Bytes that are live."""
    most: int = 0
    """Most bytes that were live at once."""


@contextmanager
def widest() -> Iterator[Live]:
    """Return a context that counts the bytes of tensors which operations within it make, from the first tensor of a
    storage to the end of its last one. Without gradients they end as on a GPU."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    live, holders = Live(), Counter[int]()

    def drop(at: int, size: int) -> None:
        holders[at] -= 1
        if not holders[at]:
            live.now -= size

    class Counted(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            del types
            known = {
                storage(part)
                for part in tree_leaves((args, kwargs or {}))
                if isinstance(part, torch.Tensor)
            }
            output = func(*args, **(kwargs or {}))
            for part in tree_leaves(output):
                if not isinstance(part, torch.Tensor):
                    continue
                at, size = storage(part), part.untyped_storage().nbytes()
                if holders[at] == 0:
                    if at in known:  # a view of a weight or of the pixels
                        continue
                    live.now += size
                holders[at] += 1
                weakref.finalize(part, drop, at, size)
            live.most = max(live.most, live.now)
            return output

    with Counted():  # type: ignore[no-untyped-call]
        yield live
