"""The endpoint under load: requests a second of a fake engine, and memory over many episodes.

    python benchmarks/endpoint.py [--episodes 10000] [--turns 4] [--at-once 64]

One process serves, another is the load: each episode is a chat of some turns on a connection of its own. Both run on
the machine's cores together. The engine answers at once, so that what is measured is the endpoint: HTTP, JSON,
recognizing the conversation, rendering what is new, parsing the answer, the graph.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import multiprocessing
import resource
import time
from multiprocessing.connection import Connection
from urllib.parse import urlsplit

import numpy as np
import orjson

from rlhf_core.contracts import (
    Completion,
    GenerationRequest,
    RolloutContext,
    SamplingParams,
    Stop,
    Task,
    Uid,
)
from rlhf_plugin_endpoint.config import EndpointConfig
from rlhf_plugin_endpoint.episode.session import EpisodeSession
from rlhf_plugin_endpoint.host import EndpointHost
from rlhf_plugin_endpoint.settings import http_limits, route_options, session_limits
from rlhf_testing.fakes import EOS_ID, FakeRenderer

ANSWER = np.array(
    [*FakeRenderer().encode("an answer of twenty-odd tokens"), EOS_ID], dtype=np.int32
)
MIB = 1024


class InstantEngine:
    """Gives every request the same answer."""

    async def generate(self, request: GenerationRequest) -> list[Completion]:
        return [
            Completion(
                token_ids=ANSWER,
                logprobs=np.full(len(ANSWER), -0.5, dtype=np.float32),
                weight_version=np.zeros(len(ANSWER), dtype=np.int32),
                stop=Stop.EOS,
            )
            for _ in request.seeds
        ]


async def serve(pipe: Connection, episodes: int, at_once: int) -> None:
    """Host episodes, some at a time: send the address of each, and end it when the load says so."""
    config = EndpointConfig(agent="unused:unused", max_connections=at_once + 8)
    host = EndpointHost(http_limits(config), route_options(config))
    await host.start()
    context = RolloutContext(
        engine=InstantEngine(),
        renderer=FakeRenderer(),
        sampling=SamplingParams(max_new_tokens=64),
        max_length=100_000,
        seed=lambda sample, turn: turn,
    )
    loop = asyncio.get_running_loop()
    ended: dict[int, asyncio.Event] = {}
    loop.add_reader(pipe.fileno(), lambda: ended[pipe.recv()].set())
    numbers = iter(range(episodes))
    sizes: list[tuple[int, float]] = []
    num_actions = 0
    looking_s = 0.0

    async def play_all() -> None:
        nonlocal num_actions, looking_s
        for number in numbers:
            uid = Uid(0, number)
            session = EpisodeSession(uid, Task(uid=uid), context, session_limits(config))
            ended[number] = asyncio.Event()
            with host.hosting(session) as address:
                pipe.send((number, address.root_url, address.api_key))
                await ended[number].wait()
            del ended[number]
            (row,) = (await session.end()).trajectories()
            num_actions += int(row.action_mask.sum())
            if number % max(1, episodes // 10) == 0:
                start = time.process_time()
                sizes.append((number, rss_mib()))
                looking_s += time.process_time() - start

    await asyncio.gather(*(play_all() for _ in range(at_once)))
    loop.remove_reader(pipe.fileno())
    await host.close()
    # The collections before each look at the memory are none of the server's work.
    user_s = resource.getrusage(resource.RUSAGE_SELF).ru_utime - looking_s
    pipe.send((sizes, num_actions, user_s))


def rss_mib() -> float:
    """Resident memory of this process, without cycles that wait for the garbage collector."""
    gc.collect()
    with open("/proc/self/status") as file:
        line = next(line for line in file if line.startswith("VmRSS"))
    return int(line.split()[1]) / MIB


async def chat(root_url: str, key: str, turns: int) -> None:
    """Play one episode."""
    parts = urlsplit(root_url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    head = (
        f"POST {parts.path}/v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n"
        f"authorization: Bearer {key}\r\ncontent-type: application/json\r\ncontent-length: "
    ).encode()
    messages: list[dict[str, object]] = []
    for turn in range(turns):
        messages.append({"role": "user", "content": f"question {turn} of an agent"})
        body = orjson.dumps({"model": "policy", "messages": messages})
        writer.write(head + str(len(body)).encode() + b"\r\n\r\n" + body)
        reply_head = await reader.readuntil(b"\r\n\r\n")
        if not reply_head.startswith(b"HTTP/1.1 200"):
            raise SystemExit(f"expected status 200, got {reply_head!r}")
        length = int(reply_head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
        reply = orjson.loads(await reader.readexactly(length))
        messages.append(reply["choices"][0]["message"])
    writer.close()


async def load(pipe: Connection, episodes: int, turns: int, at_once: int) -> float:
    """Play all episodes as they are offered, and return the seconds."""
    loop = asyncio.get_running_loop()
    offers: asyncio.Queue[tuple[int, str, str]] = asyncio.Queue()
    loop.add_reader(pipe.fileno(), lambda: offers.put_nowait(pipe.recv()))
    start = time.perf_counter()

    left = iter(range(episodes))

    async def play_all() -> None:
        for _ in left:
            number, root_url, key = await offers.get()
            await chat(root_url, key, turns)
            pipe.send(number)

    await asyncio.gather(*(play_all() for _ in range(at_once)))
    loop.remove_reader(pipe.fileno())
    return time.perf_counter() - start


def run_server(pipe: Connection, episodes: int, at_once: int) -> None:
    asyncio.run(serve(pipe, episodes, at_once))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--episodes", type=int, default=10_000)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--at-once", type=int, default=64)
    args = parser.parse_args()
    here, there = multiprocessing.Pipe()
    server = multiprocessing.Process(target=run_server, args=(there, args.episodes, args.at_once))
    server.start()
    seconds = asyncio.run(load(here, args.episodes, args.turns, args.at_once))
    sizes, num_actions, user_s = here.recv()
    server.join()
    requests = args.episodes * args.turns
    assert num_actions == requests * len(ANSWER), (num_actions, requests * len(ANSWER))
    print(f"{requests} requests in {seconds:.1f} s: {requests / seconds:.0f} a second")
    print(f"the server's own time: {1e6 * user_s / requests:.0f} us a request")
    for number, size in sizes:
        print(f"after {number:>6} episodes: {size:.1f} MiB resident")


if __name__ == "__main__":
    multiprocessing.set_start_method("fork")
    main()
