"""An environment of its own: a user who opens the conversation and goes on with it. Tasks without an end."""

from collections.abc import Iterator
from itertools import count

import verifiers.v1 as vf


class TalkData(vf.TaskData):
    phrases: list[str]


class TalkTask(vf.Task[TalkData]):
    @vf.reward
    async def repeated(self, trace: vf.Trace) -> float:
        replies = [message.content for message in trace.assistant_messages]
        return sum(map(str.__eq__, replies, self.data.phrases)) / len(self.data.phrases)


class TalkEnv(vf.SingleAgentEnv):
    async def run(self, task, agents):
        async with agents.agent.interaction(task) as interaction:
            for phrase in task.data.phrases:
                if (await interaction.turn(phrase)).terminated:
                    break


class TalkTaskset(vf.Taskset[TalkTask]):
    INFINITE = True

    def load(self) -> Iterator[TalkTask]:
        for n in count():
            yield TalkTask(TalkData(prompt=None, phrases=[f"a{n}", f"b{n}", f"c{n}"]))


__all__ = ["TalkEnv", "TalkTaskset"]
