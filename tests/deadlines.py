"""How long a test waits for what has to happen: a test fails for a wrong result, never for a slow machine."""

import asyncio
import time

HANG_S = 300.0
"""Nothing that these tests start takes as long on a machine that is busy; what does hangs."""
PATIENT_S = 10 * HANG_S
"""For a deadline of the product that must not be what ends a wait."""


async def until(condition):
    """Wait until a condition is true."""
    async with asyncio.timeout(HANG_S):
        while not condition():
            await asyncio.sleep(0.02)


def wait_until(condition):
    """Wait, outside of asyncio, until what a condition returns is true, and return it."""
    give_up = time.monotonic() + HANG_S
    while not (found := condition()):
        assert time.monotonic() < give_up
        time.sleep(0.02)
    return found
