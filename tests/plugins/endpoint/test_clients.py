"""The released clients of OpenAI and Anthropic, as an agent uses them."""

import asyncio
import json

import anthropic
import openai
import pytest

from rlhf_testing.fakes import FakeEngine

CITY = {"type": "object", "properties": {"city": {"type": "string"}}}
CHAT_TOOL = {"type": "function", "function": {"name": "weather", "parameters": CITY}}
RESPONSE_TOOL = {"type": "function", "name": "weather", "parameters": CITY, "strict": False}
BLOCK_TOOL = {"name": "weather", "description": "of a city", "input_schema": CITY}
CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Bern"}}</tool_call>'


def weather_engine(play):
    """An engine that asks for the weather, and then tells it."""

    def script(request, index):
        read = play.renderer.decode(request.prompt_ids)
        return "it is warm" if "[tool]" in read else f"<think>look it up</think>a moment{CALL}"

    return FakeEngine(script)


def openai_client(context, **options):
    return openai.OpenAI(base_url=context.base_url, api_key=context.api_key, **options)


def anthropic_client(context):
    return anthropic.Anthropic(base_url=context.root_url, api_key=context.api_key)


def chat(context):
    with openai_client(context) as client:
        messages = [{"role": "user", "content": "weather?"}]
        for _ in range(2):
            reply = client.chat.completions.create(
                model=context.model, messages=messages, tools=[CHAT_TOOL]
            )
            message = reply.choices[0].message
            messages.append(message.model_dump(exclude_none=True))
            for call in message.tool_calls or ():
                assert json.loads(call.function.arguments) == {"city": "Bern"}
                messages.append({"role": "tool", "tool_call_id": call.id, "content": "20"})
        assert message.content == "it is warm"
        assert reply.usage.prompt_tokens > 0


def chat_stream(context):
    with openai_client(context) as client:
        messages = [{"role": "user", "content": "weather?"}]
        for _ in range(2):
            with client.chat.completions.stream(
                model=context.model, messages=messages, tools=[CHAT_TOOL]
            ) as stream:
                message = stream.get_final_completion().choices[0].message
            messages.append(message.to_dict(exclude_none=True))
            for call in message.tool_calls or ():
                messages.append({"role": "tool", "tool_call_id": call.id, "content": "20"})
        assert message.content == "it is warm"


def responses(context):
    with openai_client(context) as client:
        items = [{"role": "user", "content": "weather?"}]
        for _ in range(2):
            reply = client.responses.create(model=context.model, input=items, tools=[RESPONSE_TOOL])
            items += [item.to_dict() for item in reply.output]
            for call in reply.output:
                if call.type == "function_call":
                    items.append(
                        {"type": "function_call_output", "call_id": call.call_id, "output": "20"}
                    )
        assert reply.output_text == "it is warm"


def responses_stream(context):
    with openai_client(context) as client:
        given = {"input": [{"role": "user", "content": "weather?"}]}
        for _ in range(2):
            with client.responses.stream(
                model=context.model, tools=[RESPONSE_TOOL], **given
            ) as stream:
                reply = stream.get_final_response()
            outputs = [
                {"type": "function_call_output", "call_id": call.call_id, "output": "20"}
                for call in reply.output
                if call.type == "function_call"
            ]
            given = {"input": outputs, "previous_response_id": reply.id}
        assert reply.output_text == "it is warm"


def messages(context):
    with anthropic_client(context) as client:
        said = [{"role": "user", "content": "weather?"}]
        for _ in range(2):
            reply = client.messages.create(
                model=context.model, max_tokens=500, messages=said, tools=[BLOCK_TOOL]
            )
            said.append({"role": "assistant", "content": reply.content})
            said += results(reply)
        assert reply.content[-1].text == "it is warm"
        counted = client.messages.count_tokens(model=context.model, messages=said[:1])
        assert counted.input_tokens == len("[user]weather?|[assistant]")


def messages_stream(context):
    with anthropic_client(context) as client:
        said = [{"role": "user", "content": "weather?"}]
        for _ in range(2):
            with client.messages.stream(
                model=context.model, max_tokens=500, messages=said, tools=[BLOCK_TOOL]
            ) as stream:
                reply = stream.get_final_message()
            said.append({"role": "assistant", "content": reply.content})
            said += results(reply)
        assert reply.content[-1].text == "it is warm"


def results(reply):
    calls = [block for block in reply.content if block.type == "tool_use"]
    assert all(call.input == {"city": "Bern"} for call in calls)
    if not calls:
        return []
    blocks = [{"type": "tool_result", "tool_use_id": call.id, "content": "20"} for call in calls]
    return [{"role": "user", "content": blocks}]


@pytest.mark.parametrize(
    "agent",
    [chat, chat_stream, responses, responses_stream, messages, messages_stream],
    ids=lambda agent: agent.__name__,
)
def test_a_tool_cycle_is_one_path_of_the_tokens_that_were_sampled(play, agent):
    play.engine = weather_engine(play)

    (row,) = play(
        lambda context: (agent(context), 1.0)[1], context=play.context(max_new_tokens=500)
    )

    first, second = play.engine.requests
    assert row.metrics["graph/requests"] == 2.0
    assert row.metrics["graph/segments"] == 1.0
    assert row.metrics["graph/forks"] == 0.0
    # The second request reads the first's answer as it was sampled, thought and call included.
    read = play.renderer.decode(second.prompt_ids, skip_special_tokens=False)
    assert read.startswith(play.renderer.decode(first.prompt_ids))
    assert f"<think>look it up</think>a moment{CALL}<eos>|[tool]20|" in read
    assert tuple(row.token_ids[: len(second.prompt_ids)]) == second.prompt_ids


def test_without_the_key_clients_are_told_so(play):
    said = [{"role": "user", "content": "hi"}]

    def agent(context):
        with (
            openai.OpenAI(base_url=context.base_url, api_key="wrong") as client,
            pytest.raises(openai.AuthenticationError, match="expected the episode's key"),
        ):
            client.chat.completions.create(model=context.model, messages=said)
        with (
            anthropic.Anthropic(base_url=context.root_url, api_key="wrong") as client,
            pytest.raises(anthropic.AuthenticationError, match="expected the episode's key"),
        ):
            client.messages.create(model=context.model, max_tokens=5, messages=said)
        chat(context)
        return 1.0

    play.engine = weather_engine(play)
    play(agent, context=play.context(max_new_tokens=500))


def test_clients_get_the_problem_of_their_request(play):
    def agent(context):
        asked = {"model": context.model, "messages": [{"role": "user", "content": "hi"}]}
        with openai_client(context) as client:
            create = client.chat.completions.create
            with pytest.raises(openai.NotFoundError, match="there is no model 'gpt-x'"):
                create(**{**asked, "model": "gpt-x"})
            with pytest.raises(openai.BadRequestError, match="n is 1000000") as refused:
                create(**asked, n=10**6)
            assert (refused.value.code, refused.value.param) == ("out_of_range", "n")
            with pytest.raises(openai.BadRequestError, match="the run decides how tokens"):
                create(**asked, temperature=0.2)
            with pytest.raises(openai.BadRequestError, match="top_logprobs is 3; expected 0"):
                create(**asked, logprobs=True, top_logprobs=3)
            assert [model.id for model in client.models.list()] == ["policy"]
            create(**asked, temperature=1.0, logprobs=True)
        return 1.0

    (row,) = play(agent)

    assert row.metrics["turns"] == 1.0


def test_fields_that_the_run_decides_are_ignored_on_request_and_counted(play):
    def agent(context):
        with openai_client(context) as client:
            client.chat.completions.create(
                model=context.model,
                messages=[{"role": "user", "content": "hi"}],
                temperature=0.2,
                presence_penalty=1.0,
            )
        return 1.0

    (row,) = play(agent, overrides="ignore")

    assert row.metrics["endpoint/ignored_fields"] == 2.0
    assert play.engine.requests[0].sampling.temperature == 1.0


def test_a_client_that_is_retried_by_its_library_gets_the_answer_of_its_first_request(play):
    """The library gives up after its time-out, and sends the request again with a count."""
    sent = []

    class AnswersTheRetry(FakeEngine):
        async def generate(self, request):
            while len(sent) < 2:
                await asyncio.sleep(0.01)
            return await super().generate(request)

    play.engine = AnswersTheRetry()

    def agent(context):
        # Either try may be too slow on a busy machine; one of twenty is not.
        library = openai.DefaultHttpxClient(event_hooks={"request": [sent.append]})
        with openai_client(context, timeout=0.7, max_retries=20, http_client=library) as client:
            client.chat.completions.create(
                model=context.model, messages=[{"role": "user", "content": "hi"}]
            )
        return 1.0

    (row,) = play(agent)

    assert len(play.engine.requests) == 1
    assert row.metrics["turns"] == 1.0
    assert row.metrics["endpoint/retries"] >= 1.0
