"""Cost of a step where an environment runs: here, in a worker, in another interpreter, at a server.

    python benchmarks/environment_isolation.py [--episodes 64] [--steps 20] [--characters 200]

Prints milliseconds of one step alone (its round trip) and of a step while many episodes play at once (wall time over
steps), and what isolation adds to each; then the memory of a worker before and after many episodes.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from rlhf_config.isolation import IsolationOptions
from rlhf_core import Component
from rlhf_core.component import ComponentRef, Registered
from rlhf_core.contracts import Action, Environment, Observation, StepResult, Stop, Task, Uid
from rlhf_guard.environments.host import EnvironmentHost
from rlhf_guard.environments.listening import EnvironmentListener

TOKEN = "a token of this benchmark alone"
FILE = Path(__file__)


class Echo:
    """Says again what it was told."""

    async def reset(self, task: Task, seed: int) -> Observation:
        return Observation(text="?")

    async def step(self, action: Action) -> StepResult:
        return StepResult(observation=Observation(text=action.text), reward=1.0)

    async def close(self) -> None:
        pass


Make = Callable[[], Environment]


@contextlib.asynccontextmanager
async def place(mode: str) -> AsyncIterator[tuple[Make, EnvironmentHost | None]]:
    """What makes the environment in a mode, and its host."""
    if mode == "none":
        yield Echo, None
        return
    component = ComponentRef(kind="rlhf_environments", name=f"{FILE}:Echo")
    options: dict[str, object] = {"isolation": mode}
    serving = None
    if mode == "venv":
        options["python"] = sys.executable
    if mode == "remote":
        os.environ["RLHF_ENV_TOKEN"] = TOKEN
        ready: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        listener = EnvironmentListener(
            Registered(Component(name="echo", factory=lambda _: Echo()), "here"), TOKEN
        )
        serving = asyncio.create_task(listener.serve("127.0.0.1", 0, ready.set_result))
        options["address"] = (f"127.0.0.1:{await ready}",)
        component = ComponentRef(kind="rlhf_environments", name="echo")
    host = EnvironmentHost("echo", component, "", IsolationOptions.model_validate(options))
    try:
        await host.start()
        yield host.make, host
    finally:
        await host.close()
        if serving is not None:
            serving.cancel()


async def play(make: Make, steps: int, action: Action) -> None:
    environment = make()
    await environment.reset(Task(uid=Uid(0, 0)), 0)
    for _ in range(steps):
        await environment.step(action)
    await environment.close()


async def measure(mode: str, args: argparse.Namespace) -> tuple[float, float]:
    """Milliseconds of a step alone, the best of five, and of a step among many episodes."""
    action = Action(text="x" * args.characters, token_ids=tuple(range(50)), stop=Stop.EOS, turn=0)
    async with place(mode) as (make, _):
        await play(make, 20, action)
        alone = []
        for _ in range(5):
            start = time.perf_counter()
            await play(make, 200, action)
            alone.append((time.perf_counter() - start) / 200)
        start = time.perf_counter()
        await asyncio.gather(*(play(make, args.steps, action) for _ in range(args.episodes)))
        many = (time.perf_counter() - start) / (args.episodes * args.steps)
    return 1000 * min(alone), 1000 * many


async def memory(args: argparse.Namespace) -> tuple[float, float]:
    """MiB of the processes below this one, after 1 000 and after 11 000 episodes in one worker."""
    action = Action(text="x" * args.characters, token_ids=(), stop=Stop.EOS, turn=0)
    found = []
    async with place("process") as (make, _):
        for count in (10, 100):
            for _ in range(count):
                await asyncio.gather(*(play(make, 1, action) for _ in range(100)))
            found.append(max(map(_resident_mib, _below(os.getpid()))))
    return found[0], found[1]


def _below(root: int) -> list[int]:
    children = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            parent = int(Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[1])
            children += [int(name)] if parent == root else []
    return children + [pid for child in children for pid in _below(child)]


def _resident_mib(pid: int) -> float:
    with contextlib.suppress(OSError):
        return (
            int(Path(f"/proc/{pid}/statm").read_text().split()[1])
            * os.sysconf("SC_PAGE_SIZE")
            / 2**20
        )
    return 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--episodes", type=int, default=64, help="episodes at once")
    parser.add_argument("--steps", type=int, default=20, help="steps of each")
    parser.add_argument(
        "--characters", type=int, default=200, help="length of an answer and of an observation"
    )
    args = parser.parse_args()
    base = (0.0, 0.0)
    print(
        f"{'isolation':10} {'a step alone':>14} {'adds':>10} {f'of {args.episodes} episodes':>16} {'adds':>10}"
    )
    for mode in ("none", "process", "venv", "remote"):
        alone, many = asyncio.run(measure(mode, args))
        if mode == "none":
            base = (alone, many)
        print(
            f"{mode:10} {alone:11.3f} ms {alone - base[0]:7.3f} ms {many:13.3f} ms {many - base[1]:7.3f} ms"
        )
    first, last = asyncio.run(memory(args))
    print(f"memory of a worker: {first:.1f} MiB after 1,000 episodes, {last:.1f} MiB after 11,000")


if __name__ == "__main__":
    main()
