"""An environment of the first API whose rollouts break."""

import verifiers.legacy as vf
from datasets import Dataset


class BrokenEnv(vf.SingleTurnEnv):
    async def rollout(self, *args, **kwargs):
        raise ValueError("no such passage")


def load_environment():
    rows = Dataset.from_list([{"question": "a", "answer": "b"}])
    return BrokenEnv(dataset=rows, rubric=vf.Rubric())
