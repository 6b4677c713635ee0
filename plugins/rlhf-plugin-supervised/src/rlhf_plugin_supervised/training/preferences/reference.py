"""Log-probs of the reference: of the model before its first update, or of a copy that follows the policy."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rlhf_core.contracts import RoleHandle, TrajectoryColumns

from ..update import logprobs_of


class ReferenceLogprobs:
    """The reference's log-probs of a set of rows.

    A reference that stays as it is gives them once, before the first update: no second model is in memory. Of one that
    follows the policy they are computed when they are asked for.

    Args:
        has_adapter: True: the policy has an adapter, and the reference is the policy as it began.
        follows: True: the policy keeps a reference that follows it (``RoleSpec.reference_sync``).
        batch_size: rows of one pass.
    """

    def __init__(
        self, rows: TrajectoryColumns, *, has_adapter: bool, follows: bool, batch_size: int
    ) -> None:
        self._rows = rows
        self._has_adapter = has_adapter
        self._follows = follows
        self._batch_size = batch_size
        self._known: NDArray[np.float32] | None = None

    async def begin(self, model: RoleHandle) -> None:
        """Compute those of all rows, by a policy that has not learned yet, if the reference stays as it is."""
        if not self._follows:
            logprobs = model.base_logprobs if self._has_adapter else model.logprobs
            self._known = await logprobs_of(self._rows, logprobs, self._batch_size)

    async def of(self, rows: NDArray[np.int64], model: RoleHandle) -> NDArray[np.float32]:
        """Return the log-prob of each learned token of these rows, (sum of A,), in nats, under the reference now."""
        if self._known is not None:
            return self._known[self._rows.action_index(rows)]
        return await logprobs_of(self._rows.select(rows), model.base_logprobs, self._batch_size)

    async def of_all(self, model: RoleHandle) -> NDArray[np.float32]:
        """Return those of all rows."""
        return await self.of(np.arange(len(self._rows)), model)
