"""Without the frameworks there is nobody to serve: skip, or fail where they are required."""

import os

import pytest

from .installed import missing, show


@pytest.fixture(scope="session")
def installed_clients() -> None:
    lacking = missing()
    if not lacking:
        return show()
    message = f"{', '.join(lacking)} not in .clients; run: make clients"
    if os.environ.get("REQUIRE_CLIENTS"):
        pytest.fail(message)
    pytest.skip(message)
