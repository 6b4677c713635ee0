"""After each update: does the engine serve what the trainer has?"""

from __future__ import annotations

import asyncio

from ..contracts.engine import Engine
from ..contracts.runtime import RoleHandle
from ..errors import RolloutError


async def check_served_weights(engine: Engine, policy: RoleHandle, version: int) -> None:
    """Compare the digests of both, unless the engine computes with the trainer's own tensors or cannot tell.

    Raises:
        RolloutError: they differ, so that samples would not be of the policy that is trained.
    """
    if engine.shares_weights:
        return
    # Both at once: each only waits for its own device.
    reading = asyncio.ensure_future(engine.checksum())
    await asyncio.sleep(
        0
    )  # the engine's request goes out before a role of this process begins to compute
    try:
        expected = await policy.checksum()
        served = await reading
    finally:
        reading.cancel()
    if served is not None and served != expected:
        raise RolloutError(
            f"after the update to version {version} the engine serves other weights (digest {served[:12]}) than the "
            f"trainer has ({expected[:12]}); its samples would be off-policy without a word. Go on from the newest "
            "checkpoint with --resume auto. If it happens again, the engine is at fault for this model, and "
            "--rollout.check_weights false would only hide it."
        )
