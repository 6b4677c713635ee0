"""An environment that does what the policy's text says, for tests of the places where environments run."""

import asyncio
import os
import sys
import time
from pathlib import Path

from rlhf_core import Component, Config, DataError, hookimpl
from rlhf_core.contracts import Observation, StepResult, ToolCall


class ProbeConfig(Config):
    size: int = 3


class Probe:
    def __init__(self, config):
        self.size = config.size
        self.log = []

    def tasks(self, split):
        if split == "train":
            return [{"key": index, "text": "x" * self.size} for index in range(1000)]
        if split == "endless":
            return self._endless()
        if split == "wrong":
            return ["no row"]
        raise KeyError(split)

    def _endless(self):
        index = 0
        while True:
            yield {"key": index}
            index += 1

    async def reset(self, task, seed):
        self.log = [seed]
        if "reset" in task.row:
            await self._do(task.row["reset"])
        return Observation(text=f"{task.row.get('text', '')}{seed}")

    async def step(self, action):
        self.log.append(action.text)
        return await self._do(action.text) or StepResult(
            observation=Observation(text=action.text),
            reward=len(self.log),
            rewards={"size": self.size},
            done=action.turn == 2,
            metrics={"turn": action.turn},
        )

    async def episode_rewards(self):
        return {"length": float(len(self.log))}

    async def close(self):
        if "close" in self.log:
            print("closed", flush=True)

    async def _do(self, word):
        word, _, value = word.partition(" ")
        match word:
            case "raise":
                raise ValueError(value)
            case "ours":
                raise DataError(value, code="data/no-rows")
            case "exit":
                sys.exit(5)
            case "task":
                self.task = asyncio.create_task(self._do(value))
                await asyncio.Event().wait()
            case "die":
                print("last words", flush=True)
                os._exit(7)
            case "variables":
                return StepResult(observation=Observation(text=" ".join(sorted(os.environ))))
            case "key":
                os.environ[value]
            case "wait":
                await asyncio.sleep(float(value))
            case "until":
                with open(f"{value}.begun", "a") as begun:
                    begun.write(".")
                while not Path(value).exists():
                    await asyncio.sleep(0.01)
            case "block":
                time.sleep(float(value))
            case "none":
                return 5
            case "huge":
                return StepResult(observation=Observation(text="x" * 100_000_000))
            case "deep":
                inner = []
                for _ in range(5000):
                    inner = [inner]
                return StepResult(
                    observation=Observation(messages=({"role": "user", "content": inner},))
                )
            case "nan":
                return StepResult(reward=float("nan"))
            case "object":
                return StepResult(metrics={"it": object()})
            case "words":
                return StepResult(reward="much")
            case "surrogate":
                return StepResult(observation=Observation(text="\ud800 \udfff \0"))
            case "tool":
                schema = {"type": "function", "function": {"name": ToolCall.__name__}}
                return StepResult(
                    observation=Observation(
                        messages=({"role": "tool", "content": "é"},), tools=(schema,)
                    )
                )
            case "garbage":
                # The worker's own line to the run is the only socket that it has.
                for name in os.listdir("/proc/self/fd"):
                    if (
                        os.path.realpath(f"/proc/self/fd/{name}")
                        .rpartition("/")[2]
                        .startswith("socket:")
                    ):
                        try:
                            os.write(
                                int(name), value.encode("latin-1") or b"garbage that is no frame"
                            )
                        except OSError:
                            continue
        return None


@hookimpl
def rlhf_environments():
    return [Component(name="probe", factory=Probe, config=ProbeConfig)]
