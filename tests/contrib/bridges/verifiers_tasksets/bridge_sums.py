"""Two rewards with weights, a metric, and an option: one question, one answer."""

import verifiers.v1 as vf


class SumData(vf.TaskData):
    answer: str


class SumTask(vf.Task[SumData]):
    @vf.reward(weight=2.0)
    async def right(self, trace: vf.Trace) -> float:
        return float(trace.last_reply == self.data.answer)

    @vf.reward(weight=0.5)
    async def short(self, trace: vf.Trace) -> float:
        if trace.last_reply == "boom":
            raise ValueError("this reply cannot be scored")
        return float(len(trace.last_reply) <= 2)

    @vf.metric
    async def length(self, trace: vf.Trace) -> float:
        return float(len(trace.last_reply))


class SumConfig(vf.TasksetConfig):
    size: int = 10


class SumTaskset(vf.Taskset[SumTask, SumConfig]):
    def load(self) -> list[SumTask]:
        return [
            SumTask(
                SumData(prompt=f"{n}+{n}=", system_prompt="Add.", answer=str(2 * n)),
                self.config.task,
            )
            for n in range(self.config.size)
        ]


__all__ = ["SumTaskset"]
