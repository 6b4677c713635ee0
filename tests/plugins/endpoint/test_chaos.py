"""Episodes whose agents hang, raise, exit, ask nonsense or leave in the middle: none is lost, none counts twice."""

import asyncio
import random
import sys
from collections import Counter
from types import ModuleType

import pytest
from tests.chaos import PROMPTS, SAMPLES, STEPS, play

from rlhf_plugin_endpoint.config import EndpointConfig
from rlhf_plugin_endpoint.executor import Endpoint

EPISODE_S = 1.5
"""Time after which an agent that hangs is given up; on a slow machine others may be too late, which is told apart."""
MODES = (
    "well",
    "well",
    "raises",
    "exits",
    "hangs",
    "cancels itself",
    "nonsense",
    "nan",
    "silent",
    "leaves",
)
REFUSED = (b"{", b"[]", b'{"messages": 3}', b'{"model": "other", "messages": []}', b"\xff\xfe")


async def post(context, body):
    """Send a request as bytes, and return the status of the answer; what a client library would refuse goes too."""
    address, _, path = context.base_url.removeprefix("http://").partition("/")
    host, _, port = address.partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        head = f"POST /{path}/chat/completions HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n"
        head += f"authorization: Bearer {context.api_key}\r\ncontent-length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        await writer.drain()
        return int((await reader.readline()).split()[1])
    finally:
        writer.close()


class Chaotic:
    """An agent that asks twice, if it is well; else something goes wrong before, between or behind its requests."""

    def __init__(self):
        self.modes = Counter()
        self.finished = set()

    async def __call__(self, context):
        draw = random.Random(context.uid)
        mode, when = draw.choice(MODES), draw.randrange(3)
        self.modes[mode] += 1
        for turn in range(3):
            if turn == when and mode != "well":
                return await self.go_wrong(mode, context, draw)
            if turn < 2:
                question = b'{"model": "policy", "messages": [{"role": "user", "content": "%d"}]}'
                assert await post(context, question % turn) == 200
        self.finished.add(context.uid)
        return 1.0

    async def go_wrong(self, mode, context, draw):
        match mode:
            case "raises":
                raise ZeroDivisionError("division by zero")
            case "exits":
                raise SystemExit(1)
            case "hangs":
                await asyncio.Event().wait()
            case "cancels itself":
                raise asyncio.CancelledError
            case "nonsense":
                assert 400 <= await post(context, draw.choice(REFUSED)) < 500
                return draw.choice(["done", {"reward": "much"}, [1.0], object()])
            case "nan":
                return float("nan")
            case "silent":
                return None
            case "leaves":
                asking = asyncio.ensure_future(post(context, b'{"messages": [{"role": "us'))
                await asyncio.sleep(0)
                asking.cancel()
                return 0.0


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["drop", pytest.param("value", marks=pytest.mark.matrix)])
def test_no_episode_is_lost_or_counts_twice_whatever_agents_do(policy, tmp_path, monkeypatch):
    agent = Chaotic()
    module = ModuleType("chaotic_agent_of_a_test")
    module.agent = agent.__call__
    monkeypatch.setitem(sys.modules, module.__name__, module)

    executor = Endpoint(
        EndpointConfig(
            agent="chaotic_agent_of_a_test:agent", on_error=policy, episode_timeout_s=EPISODE_S
        )
    )

    taken, balance = play(executor, tmp_path / "ledger.jsonl")

    assert balance.unsettled() == []
    assert sum(balance.planned.values()) == agent.modes.total() == PROMPTS * SAMPLES * STEPS == 2000
    assert sum(balance.trained.values()) + sum(balance.dropped.values()) == 2000
    rows = [row for step in taken for row in rows_of(step.batch)]
    episodes = {uid for uid, _, _ in rows}
    assert len(episodes) == sum(balance.trained.values())
    # Whoever was well and in time is in the batch, with what it earned, and nobody else earned anything.
    late = {uid for uid, _, is_late in rows if is_late}
    assert {uid for uid, reward, _ in rows if reward} == agent.finished - late
    assert agent.finished <= episodes
    assert all(agent.modes.values())


def rows_of(batch):
    """Name of the episode, reward, and whether it ran out of time, for each row."""
    names = [str(uid._replace(segment=0)) for uid in batch.uids()]
    return zip(
        names, batch.total_reward.tolist(), batch.metrics["end/timeout"].tolist(), strict=True
    )
