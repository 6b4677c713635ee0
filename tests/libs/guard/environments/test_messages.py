import dataclasses

import pytest

from rlhf_core.contracts import (
    Action,
    Observation,
    StepResult,
    Stop,
    Task,
    ToolCall,
    TurnSampling,
    Uid,
)
from rlhf_core.media.reference import MediaRef
from rlhf_guard.environments.frames import packed, unpacked
from rlhf_guard.environments.messages import (
    MessageError,
    action_fields,
    action_of,
    observation_fields,
    observation_of,
    result_fields,
    result_of,
    task_fields,
    task_of,
)

TASK = Task(
    uid=Uid(1, 2, 3, 4),
    prompt_ids=(1, 2),
    messages=({"role": "user", "content": "a"},),
    row={"a": [1, {"b": None}]},
    dataset="d",
    environment="e",
    media=(MediaRef(sha256="0" * 64, num_bytes=9, format="png", width=3, height=2),),
)
ACTION = Action(
    text="t",
    token_ids=(1, 2),
    stop=Stop.LENGTH,
    turn=3,
    reasoning="r",
    content="c",
    tool_calls=(ToolCall(name="n", arguments="{", id="i"),),
    malformed=("no name",),
)
OBSERVATION = Observation(
    messages=({"role": "tool", "content": "x"},),
    tools=({"name": "f"},),
    sampling=TurnSampling(max_new_tokens=3, stop=("a",)),
)
RESULT = StepResult(
    observation=OBSERVATION, reward=0.1, rewards={"a": 2.0}, done=True, metrics={"m": 3.0}
)


def sent(fields):
    return unpacked(packed({"it": fields})[4:])["it"]


@pytest.mark.parametrize(
    ("value", "write", "read"),
    [
        (TASK, task_fields, task_of),
        (ACTION, action_fields, action_of),
        (OBSERVATION, observation_fields, observation_of),
        (Observation(text=""), observation_fields, observation_of),
        (Observation(token_ids=(3,)), observation_fields, observation_of),
        (Observation(), observation_fields, observation_of),
        (Observation(sampling=TurnSampling()), observation_fields, observation_of),
        (RESULT, result_fields, result_of),
    ],
)
def test_what_an_episode_sends_arrives_as_it_was(value, write, read):
    assert read(sent(write(value))) == value


@pytest.mark.parametrize("value", [TASK, ACTION, RESULT])
def test_every_field_of_a_contract_is_part_of_the_test(value):
    """A field that is added to a contract has to be sent too."""
    for field in dataclasses.fields(value):
        default = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        assert getattr(value, field.name) != default, field.name
    covered = {"text", "messages", "token_ids", "tools", "sampling"}
    assert {field.name for field in dataclasses.fields(Observation)} == covered


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        (None, "an observation of type NoneType; expected dict"),
        ({"text": 3}, "text of type int; expected str"),
        ({"messages": [3]}, "messages that are not each of type dict"),
        ({"messages": {"role": "user"}}, "messages of type dict; expected list"),
        ({"sampling": {"max_new_tokens": 0}}, "max_new_tokens is 0; expected at least 1"),
        ({"sampling": {"stop": "a"}}, "stop of type str; expected list"),
        ({"token_ids": [True]}, "token_ids that are not each of type int"),
        ({"text": "a", "token_ids": [1]}, "takes one of text, messages and token_ids"),
    ],
)
def test_an_observation_of_the_wrong_form_is_refused(fields, text):
    with pytest.raises(MessageError, match=text):
        observation_of(fields)


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"reward": "1"}, "reward = '1'; expected a number"),
        ({"reward": None}, "reward = None; expected a number"),
        ({"rewards": [1]}, "rewards of type list; expected dict"),
        ({"metrics": {"a": [1]}}, r"metrics 'a' = \[1\]; expected a number"),
        ({"done": 1}, "done of type int; expected bool"),
    ],
)
def test_a_result_of_the_wrong_form_is_refused(changed, text):
    with pytest.raises(MessageError, match=text):
        result_of({**result_fields(RESULT), **changed})
