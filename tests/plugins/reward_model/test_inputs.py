"""Conversations in a reward model's own chat template, by the rules of every other command."""

import pytest

from rlhf_core import ConfigError, RewardError
from rlhf_plugin_reward_model.config import RewardModelConfig
from rlhf_plugin_reward_model.ends import SequenceEnd
from rlhf_plugin_reward_model.inputs import ScoredInputs
from rlhf_testing.errors import has_code
from rlhf_testing.tiny import tiny_tokenizer

ANYWHERE = SequenceEnd(scored=(), at_end=False, others=frozenset(), words=(), text_end=None)
"""Of a model that others trained, whose sequences are scored as the template writes them."""
CHAT = [
    {"role": "system", "content": "be kind"},
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": "hello"},
]
USERS = "{% for m in messages if m.role != 'system' %}{{ m.role + ':' + m.content }}\n{% endfor %}"


def inputs(template, **options):
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = template
    return ScoredInputs(tokenizer, ANYWHERE, **options)


def text(made, messages=CHAT):
    return tiny_tokenizer().decode(made.conversation(messages))


def test_what_the_template_leaves_out_is_named():
    with pytest.raises(
        RewardError,
        match=r"message 1 \(system\).*'be kind' is missing",
        check=has_code("reward-model/conversation"),
    ):
        inputs(USERS).conversation(CHAT)
    assert text(inputs(USERS), CHAT[1:]) == "user:hi\nassistant:hello\n"


def test_parts_of_text_are_joined_for_a_template_that_writes_strings():
    parts = [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]

    shown = text(inputs(USERS), [{"role": "user", "content": parts}, CHAT[2]])

    assert shown == "user:hi\nassistant:hello\n"


@pytest.mark.parametrize(
    ("template", "said"),
    [
        (
            "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
            "stopped",
        ),
        ("{{ messages[0].content * 999999999 }}", "stopped"),
        ("{{ raise_exception('no system') }}", "refuses the messages: no system"),
        ("{{ messages[0].nothing.at_all }}", "refuses the messages"),
        (None, "expected a tokenizer with a chat template"),
    ],
)
def test_a_template_that_cannot_write_the_conversation_is_an_error_of_the_sample(template, said):
    with pytest.raises(RewardError, match=said, check=has_code("reward-model/conversation")):
        inputs(template).conversation(CHAT)


def test_variables_reach_the_template_and_others_are_refused():
    template = USERS + "{% if polite is defined and polite %}please{% endif %}"

    assert text(inputs(template, template_kwargs={"polite": True}), CHAT[1:]).endswith("please")
    with pytest.raises(
        ConfigError,
        match=r"the reward model's .*'polit' would change nothing",
        check=has_code("reward-model/other-tokens"),
    ):
        inputs(template, template_kwargs={"polit": True})


def test_variables_without_a_chat_are_refused():
    with pytest.raises(
        ValueError, match=r"chat_template_kwargs would change nothing: input is ids"
    ):
        RewardModelConfig(path="m", chat_template_kwargs={"polite": True})
