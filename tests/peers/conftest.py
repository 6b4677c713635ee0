"""Without the peers' packages there is nothing to compare with: skip, or fail where they are required."""

import os

import pytest

from .released import missing


@pytest.fixture(scope="session")
def installed_peers() -> None:
    lacking = missing()
    if not lacking:
        return
    message = f"{', '.join(lacking)} not in .peers; run: make peers"
    if os.environ.get("REQUIRE_PEERS"):
        pytest.fail(message)
    pytest.skip(message)
