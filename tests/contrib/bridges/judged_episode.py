"""One episode of a bridge without a run, its last rewards included."""

from rlhf_core.contracts import Action, Stop, Task, ToolCall, Uid


async def judged_episode(environment, row, said):
    """The first observation, the results and the rewards of an episode whose answers are texts or calls of tools."""
    try:
        first = await environment.reset(Task(uid=Uid(0, 0), row=row), 0)
        results = []
        for turn, one in enumerate(said):
            calls = (one,) if isinstance(one, ToolCall) else ()
            text = "" if calls else one
            action = Action(text=text, token_ids=(), stop=Stop.EOS, turn=turn, tool_calls=calls)
            results.append(await environment.step(action))
            if results[-1].done:
                break
        return first, results, await environment.episode_rewards()
    finally:
        await environment.close()
