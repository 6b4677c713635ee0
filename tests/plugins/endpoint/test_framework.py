"""An agent of a framework, smolagents, which writes prompts, tools and loops of its own."""

from rlhf_testing.fakes import FakeEngine


def written(request, play):
    read = play.renderer.decode(request.prompt_ids)
    if "20 degrees in Bern" in read:
        return '<tool_call>{"name": "final_answer", "arguments": {"answer": "mild"}}</tool_call>'
    return '<tool_call>{"name": "weather", "arguments": {"city": "Bern"}}</tool_call>'


def framework_agent(context):
    from smolagents import LogLevel, OpenAIModel, ToolCallingAgent, tool

    @tool
    def weather(city: str) -> str:
        """The weather of a city.

        Args:
            city: its name.
        """
        return f"20 degrees in {city}"

    model = OpenAIModel(context.model, api_base=context.base_url, api_key=context.api_key)
    agent = ToolCallingAgent(
        tools=[weather], model=model, max_steps=4, verbosity_level=LogLevel.OFF
    )
    return float(agent.run("Is it mild in Bern?") == "mild")


def test_an_agent_of_a_framework_is_trained_as_it_is(play):
    """It forces a tool call with each request, which no engine here does; the run leaves such fields aside."""
    play.engine = FakeEngine(lambda request, index: written(request, play))

    rows = play(
        framework_agent,
        overrides="ignore",
        context=play.context(max_length=100_000, max_new_tokens=500),
    )

    assert [row.total_reward for row in rows] == [1.0] * len(rows)
    metrics = rows[0].metrics
    assert metrics["graph/requests"] == 2.0
    assert metrics["endpoint/ignored_fields"] >= 2.0
    assert sum(int(row.action_mask.sum()) for row in rows) == sum(
        len(play.renderer.encode(written(request, play))) + 1 for request in play.engine.requests
    )
