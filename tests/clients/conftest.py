"""Without the frameworks there is nobody to serve: skip, or fail where they are required."""

import os

import pytest

from .installed import missing, show


@pytest.fixture(scope="session")
def installed_clients() -> None:
    lacking = missing()
    if not lacking:
        show()
        return
    message = f"{lacking[0]} and {len(lacking) - 1} more are not in .clients; run: make clients"
    if os.environ.get("REQUIRE_CLIENTS"):
        pytest.fail(message)
    pytest.skip(message)
