"""What an environment says reaches the policy whole, at first and in each later turn."""

import pytest
from tests.libs.data.chat.template.shipped import renderer_of

from rlhf_core import EnvironmentFailure
from rlhf_core.contracts import Observation, RolloutContext, SamplingParams, Task, Uid
from rlhf_plugin_agents.conversation import Conversation
from rlhf_plugin_agents.observing import all_tokens, first_tokens
from rlhf_testing.errors import has_code

UID = Uid(0, 0)
USER = {"role": "user", "content": "What is this?"}
RESULT = {"role": "tool", "content": "42", "name": "look", "tool_call_id": "call00000"}
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


def context_of(template: str) -> RolloutContext:
    return RolloutContext(
        engine=None,
        renderer=renderer_of(template),
        sampling=SamplingParams(max_new_tokens=8),
        max_length=4096,
        seed=lambda sample, turn: 0,
    )


@pytest.mark.parametrize(
    ("observation", "said"),
    [
        (
            Observation(messages=({"role": "developer", "content": "Be brief."}, USER)),
            r"message 1 \(developer\): the chat template does not show its text: 'Be brief.' is missing",
        ),
        (
            Observation(messages=(USER,), tools=(TOOL,)),
            r"tool 1 \(look\): the chat template does not show the tool",
        ),
    ],
)
def test_a_first_observation_that_would_lose_something_is_the_environments_failure(
    observation, said
):
    with pytest.raises(
        EnvironmentFailure, match=said, check=has_code("environment/unreadable-observation")
    ):
        first_tokens(UID, Task(uid=UID), observation, context_of("phi3"))


def test_a_later_observation_that_would_be_lost_is_the_environments_failure():
    context = context_of("phi3")
    conversation = Conversation(Task(uid=UID), Observation(messages=(USER,)))
    conversation.messages.append({"role": "assistant", "content": "Look."})

    with pytest.raises(
        EnvironmentFailure,
        match=r"message 1 \(tool\): .* its text: '42' is missing",
        check=has_code("environment/unreadable-observation"),
    ):
        all_tokens(
            conversation,
            [5],
            Observation(messages=(RESULT,)),
            context,
            ended=True,
            as_template=False,
        )


def test_text_parts_of_an_observation_are_its_text():
    parts = {
        "role": "user",
        "content": [{"type": "text", "text": "What is "}, {"type": "text", "text": "this?"}],
    }

    made = [
        first_tokens(UID, Task(uid=UID), Observation(messages=(message,)), context_of("qwen3"))
        for message in (parts, USER)
    ]

    assert made[0] == made[1]


@pytest.mark.parametrize("ended", ["<|user|>", "<|observation|>", None])
def test_messages_behind_an_answer_to_plain_text_have_the_mark_of_a_role_once(ended):
    """GLM ends its turn by the mark with which the next one begins."""
    context = context_of("glm4moe")
    renderer = context.renderer
    written = renderer.encode("Why? So.")
    if ended is not None:
        written = [*written, renderer.tokenizer.convert_tokens_to_ids(ended)]
    conversation = Conversation(Task(uid=UID), Observation(text="Why?"))

    found = all_tokens(
        conversation,
        written,
        Observation(messages=(USER,)),
        context,
        ended=ended is not None,
        as_template=True,
    )

    text = renderer.decode(found.token_ids, skip_special_tokens=False)
    extra = "<|observation|>" if ended == "<|observation|>" else ""
    assert text == f"Why? So.{extra}<|user|>\nWhat is this?<|assistant|>"
    assert not found.forked
