"""The file that plays an environment of SkyRL-gym as one of ours."""

from __future__ import annotations

from collections.abc import Mapping

NAME = "SkyRLEnvironment"
_TEXT = '''"""An environment of SkyRL-gym, written by rlhf migrate. It needs the package skyrl-gym."""

import asyncio
from types import SimpleNamespace

from rlhf_core.contracts import Observation, StepResult

ENV_CLASS = {env_class!r}  # the column env_class of a row goes before it
MAX_TURNS = {max_turns}
CONFIG = {config!r}


class {name}:
    def __init__(self, config):
        self.env = None

    async def reset(self, task, seed):
        import skyrl_gym

        # Register an environment of your own, as your SkyRL program does:
        # if "my_env" not in skyrl_gym.registry:
        #     skyrl_gym.register(id="my_env", entry_point="my_package.env:MyEnv")
        self.env = await asyncio.to_thread(
            skyrl_gym.make,
            task.row.get("env_class") or ENV_CLASS,
            env_config=SimpleNamespace(**CONFIG),
            extras=dict(task.row) | {{"max_turns": MAX_TURNS}},
        )
        prompt = [dict(message) for message in task.row["prompt"]]
        messages, _ = await asyncio.to_thread(self.env.init, prompt)
        return Observation(messages=messages)

    async def step(self, action):
        result = await asyncio.to_thread(self.env.step, action.text)
        numbers = {{
            key: float(value)
            for key, value in (result.get("metadata") or {{}}).items()
            if isinstance(value, (bool, int, float))
        }}
        return StepResult(
            observation=Observation(messages=result["observations"]),
            reward=float(result["reward"]),
            done=bool(result["done"]),
            metrics=numbers,
        )

    async def close(self):
        if self.env is not None:
            self.env.close()
'''


def environment_text(env_class: str, max_turns: int, config: Mapping[str, object]) -> str:
    """Return the text of the file.

    Args:
        env_class: id of the environment in SkyRL-gym.
        max_turns: largest number of the policy's turns.
        config: options of the environment, as SkyRL's section ``environment.skyrl_gym`` has them.
    """
    return _TEXT.format(env_class=env_class, max_turns=max_turns, config=dict(config), name=NAME)
