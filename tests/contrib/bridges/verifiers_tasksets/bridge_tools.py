"""A tool server of the task, whose state the reward reads."""

import verifiers.v1 as vf


class LampState(vf.State):
    on: bool = False


class LampToolset(vf.Toolset[vf.ToolsetConfig, LampState]):
    TOOL_PREFIX = "lamp"

    @vf.tool
    def switch(self, on: bool) -> str:
        """Switch the lamp on or off."""
        self.state.on = on
        return f"on={on}"


class LampTaskConfig(vf.TaskConfig):
    tools: vf.ToolsetConfig = vf.ToolsetConfig()


class LampTask(vf.Task[vf.TaskData, LampState, LampTaskConfig]):
    @classmethod
    def toolsets(cls, config: LampTaskConfig) -> list[vf.Toolset]:
        return [LampToolset(config.tools)]

    @vf.reward
    async def lit(self, trace: vf.Trace) -> float:
        return float(trace.state.on)


class LampConfig(vf.TasksetConfig):
    task: LampTaskConfig = LampTaskConfig()


class LampTaskset(vf.Taskset[LampTask, LampConfig]):
    def load(self) -> list[LampTask]:
        return [LampTask(vf.TaskData(prompt="Light the lamp."), self.config.task)]


__all__ = ["LampTaskset"]

if __name__ == "__main__":
    LampToolset.run()
