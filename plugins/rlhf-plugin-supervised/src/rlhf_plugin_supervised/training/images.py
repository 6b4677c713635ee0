"""Models that are given rows with images: those of a batch are taken into the run's store when a model gets it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any, cast

from rlhf_core.contracts import RoleHandle, TrainBatch, TrajectoryColumns
from rlhf_core.media import ImagesOnUse
from rlhf_data import used_images

WITH_ROWS = ("logprobs", "base_logprobs", "values", "statistics", "top_tokens", "train_step")
"""Calls of a handle whose first argument has rows."""


def with_images(
    roles: Mapping[str, RoleHandle], images: ImagesOnUse | None
) -> Mapping[str, RoleHandle]:
    """Return handles that take the images of rows in before their models get them.

    Args:
        images: takes them in; None: they are there, or the rows have none.
    """
    if images is None:
        return roles
    return {name: cast(RoleHandle, _Seeing(handle, images)) for name, handle in roles.items()}


class _Seeing:
    """A handle, whose calls are those of another one."""

    def __init__(self, handle: RoleHandle, images: ImagesOnUse) -> None:
        self._handle = handle
        self._images = images

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._handle, name)
        return self._seeing(call) if name in WITH_ROWS else call

    def _seeing(self, call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def seeing(batch: TrainBatch | TrajectoryColumns, *args: Any, **named: Any) -> Any:
            if isinstance(batch, TrainBatch):
                rows = used_images(batch.trajectories, self._images)
                return await call(replace(batch, trajectories=rows), *args, **named)
            return await call(used_images(batch, self._images), *args, **named)

        return seeing
