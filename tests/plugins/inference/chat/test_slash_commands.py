"""Lines with a slash."""

from __future__ import annotations

import json

import pytest

from rlhf_core import ConfigError
from rlhf_core.contracts import SamplingParams
from rlhf_plugin_inference.chat.conversation import ChatHistory
from rlhf_plugin_inference.chat.slash_commands import HELP, Next, apply, is_command
from rlhf_plugin_inference.chat.speaker import Speaker
from rlhf_testing.errors import has_code


@pytest.fixture
def history():
    history = ChatHistory(None)
    history.ask("one?")
    history.answer("1")
    return history


@pytest.fixture
def speaker():
    sampling = SamplingParams(max_new_tokens=9)
    return Speaker(None, None, sampling=sampling, seed=0, piece=1, max_length=9)


def test_two_slashes_begin_a_message():
    assert is_command("/reset")
    assert not is_command("//reset")
    assert not is_command("reset")


def test_the_sampling_parameters_are_shown_and_changed(history, speaker):
    effect = apply("/sampling temperature=0.5 top_k=7 stop='a b'", history, speaker)

    assert speaker.sampling == SamplingParams(
        temperature=0.5, top_k=7, stop=("a b",), max_new_tokens=9
    )
    assert effect.text.startswith("top_p=1.0 top_k=7 ")
    assert "stop=a b" in effect.text
    assert effect.text.endswith(" temperature=0.5")
    assert apply("/sampling stop=", history, speaker).text.count("stop=none") == 1


@pytest.mark.parametrize(
    ("line", "text", "code"),
    [
        ("/sampling temperature=hot", "/sampling temperature: ", "chat/sampling"),
        ("/sampling top_p=2", "/sampling top_p: ", "chat/sampling"),
        (
            "/sampling heat=1",
            "expected NAME=VALUE with a name of top_p, top_k",
            "chat/sampling-form",
        ),
        ("/sampling temperature", "expected NAME=VALUE", "chat/sampling-form"),
        ("/sampling stop='a", "No closing quotation", "chat/sampling"),
        ("/save", "expected a file", "chat/no-file"),
        ("/save .", "cannot be written", "output/chat-not-saved"),
        (
            "/rest",
            "/rest: there is no such command; /help lists all commands",
            "chat/unknown-command",
        ),
    ],
)
def test_a_wrong_command_changes_nothing_and_says_why(history, speaker, line, text, code):
    before, said = speaker.sampling, history.messages

    with pytest.raises(ConfigError, match="/", check=has_code(code)) as error:
        apply(line, history, speaker)

    assert text in str(error.value)
    assert (speaker.sampling, history.messages) == (before, said)


def test_the_system_prompt_is_set_shown_and_removed(history, speaker):
    assert apply("/system", history, speaker).text == "system prompt: none"
    assert apply("/system be brief", history, speaker).text == "system prompt: be brief"
    assert history.messages[0] == {"role": "system", "content": "be brief"}
    apply("/system none", history, speaker)
    assert history.system is None


def test_retry_leaves_the_question_and_asks_for_an_answer(history, speaker):
    assert apply("/retry", history, speaker).next is Next.ANSWER
    assert [message["role"] for message in history.messages] == ["user"]


def test_retry_without_a_question_is_refused(speaker):
    with pytest.raises(ConfigError, check=has_code("chat/no-question")):
        apply("/retry", ChatHistory("x"), speaker)


def test_saving_nothing_is_refused(speaker, tmp_path):
    with pytest.raises(ConfigError, check=has_code("chat/no-conversation")):
        apply(f"/save {tmp_path / 'x'}", ChatHistory(None), speaker)


def test_save_writes_a_row_and_reset_forgets(history, speaker, tmp_path):
    apply(f"/save {tmp_path / 'x.jsonl'}", history, speaker)
    apply("/reset", history, speaker)

    assert len(json.loads((tmp_path / "x.jsonl").read_text())["messages"]) == 2
    assert history.messages == ()


def test_exit_ends_the_program_and_help_names_every_command(history, speaker):
    assert apply("/exit", history, speaker).next is Next.END
    assert apply("/help", history, speaker).text == HELP
    for name in ("system", "sampling", "retry", "reset", "save", "help", "exit"):
        assert f"/{name}" in HELP
