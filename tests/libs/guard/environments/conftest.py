import asyncio
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from rlhf_config.isolation import IsolationOptions
from rlhf_core.component import ComponentRef
from rlhf_core.contracts import Action, Stop, Task, Uid
from rlhf_guard.environments.host import EnvironmentHost


@pytest.fixture
def probe(monkeypatch):
    """The misbehaving environment, as workers find it."""
    # Workers get sys.path from the run and load plugins themselves.
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    monkeypatch.setenv("RLHF_PLUGINS", "probe_environments")
    return ComponentRef(kind="rlhf_environments", name="probe", options={"size": 4})


@pytest.fixture
def hosted(probe):
    """``async with hosted(**options) as host``: a host of the probe in worker processes."""

    @asynccontextmanager
    async def open_host(**options):
        host = EnvironmentHost(
            "probed", probe, "probes 1.0", IsolationOptions(**{"isolation": "process", **options})
        )
        try:
            yield host
        finally:
            await host.close()

    return open_host


@pytest.fixture
def task():
    def make(prompt=0, **row):
        return Task(uid=Uid(0, prompt), row=row)

    return make


@pytest.fixture
def say():
    def make(text, turn=0):
        return Action(text=text, token_ids=(1, 2), stop=Stop.EOS, turn=turn)

    return make


@pytest.fixture
def within():
    """Run a coroutine; a hang fails the test."""

    def run(work, limit_s=300.0):
        async def limited():
            async with asyncio.timeout(limit_s):
                return await work

        return asyncio.run(limited())

    return run
