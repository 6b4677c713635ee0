"""Facts of templates of every kind, as their templates are written in the zoo."""

import pytest
from tests.libs.data.chat.template.shipped import renderer_of as shipped_renderer
from tests.libs.data.chat.zoo import KINDS, renderer_of, tokenizer_of

from rlhf_core.errors import DataError
from rlhf_data.chat.facts import Shown, Weight
from rlhf_data.chat.probing import facts_of
from rlhf_data.chat.renderer import TokenizerRenderer
from rlhf_testing.errors import has_code
from rlhf_testing.tiny import tiny_tokenizer

EXPECTED = {
    "chatml": {
        "prefix_preserving": True,
        "answers": Shown.KEPT,
        "thoughts": None,
        "tools": Shown.HIDDEN,
    },
    "hermes": {"thoughts": Shown.KEPT, "default_system": "You are kind.", "call_form": "hermes"},
    "thinking": {
        "prefix_preserving": True,
        "thoughts": Shown.DROPPED,
        "thoughts_in_tool_cycles": Shown.KEPT,
        "adds_thought": True,
        "opens_thought": False,
    },
    "opened thought": {
        "prefix_preserving": False,
        "opens_thought": True,
        "thoughts": Shown.DROPPED,
    },
    "llama3": {
        "answers": Shown.TRIMMED,
        "starts_twice": True,
        "call_form": "llama",
        "starts": ("<bos>",),
    },
    "mistral": {"tools_move": True, "call_form": "mistral", "tool_results": Shown.KEPT},
    "unigram": {
        "prefix_preserving": True,
        "generation_prompt": "<|assistant|>\n",
    },
    "words": {"answers": Shown.TRIMMED, "end_of_turn": "<end_of_turn>"},
    "spaced": {"prefix_preserving": True, "same_blanks": True},
    "rewriting": {"prefix_preserving": False},
    "deepseek": {"call_form": "deepseek", "tools": Shown.HIDDEN, "thoughts": Shown.DROPPED},
    "characters": {"prefix_preserving": True, "same_tokens": True},
}
DRIFTS = {"thinking", "opened thought", "mistral", "rewriting", "deepseek"}


def facts_for(name):
    renderer = renderer_of(name)
    return facts_of(renderer, {renderer.tokenizer.convert_tokens_to_ids(KINDS[name].end)})


@pytest.mark.parametrize("name", KINDS)
def test_the_facts_are_those_of_the_template(name):
    facts = facts_for(name)

    assert {key: getattr(facts, key) for key in EXPECTED[name]} == EXPECTED[name]
    assert facts.drifts == (name in DRIFTS)
    assert facts.end_is_stop


def templated(template, **changes):
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = template
    return facts_of(TokenizerRenderer(tokenizer), {changes.get("stop", tokenizer.eos_token_id)})


def drifts_of(facts):
    return " ".join(one.text for one in facts.findings() if one.weight is Weight.DRIFT)


TURNS = (
    "{% for m in messages %}{{ m.role }}:{{ m.content }}<eos>\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


def test_a_dropped_separator_drifts():
    """The generation prompt has a new line that no answer in history has."""
    facts = templated(TURNS.replace("assistant:{% endif", "assistant:{{ '\\n' }}{% endif"))

    assert "The blanks around an answer differ" in drifts_of(facts)


def test_a_changed_answer_drifts():
    facts = templated(TURNS.replace("{{ m.content }}", "{{ m.content | replace(' it', '') }}"))

    assert "Answers are changed in later turns" in drifts_of(facts)


def test_an_end_that_is_no_stop_token_drifts():
    assert "It ends no generation" in drifts_of(templated(TURNS, stop=1))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "glm4moe",
            "<|user|>, by which the user's next turn begins (one of calls with <|observation|>)",
        ),
        ("gptoss", "<|return|> (one of calls with <|call|>)"),
        ("qwen3", "<|im_end|>"),
    ],
)
def test_the_end_of_a_turn_is_named(name, said):
    """GLM's was said to end with no special token, and to end no generation."""
    renderer = shipped_renderer(name)
    ends = {*renderer.closing, *renderer.end_of_calls}

    texts = [one.text for one in facts_of(renderer, ends).findings()]
    without = [one.text for one in facts_of(renderer, {2}).findings()]

    assert any(one.startswith(f"A turn ends with {said}. It ends a generation") for one in texts)
    assert any(one.startswith(f"A turn ends with {said}. It ends no gen") for one in without)


def test_the_date_of_the_day_drifts():
    facts = templated("{{ strftime_now('%d %b %Y') }}" + TURNS)

    assert "date of the day" in drifts_of(facts)


def test_calls_in_another_writing_drift():
    tools = "{% if tools %}{{ tools | tojson }}{% endif %}"
    values = (
        "{% for key, value in c.function.arguments.items() %}{{ key }}={{ value }} {% endfor %}"
    )
    calls = f"{{% for c in m.tool_calls or [] %}}{{{{ c.function.name }}}}({values}){{% endfor %}}"
    facts = templated(tools + TURNS.replace("<eos>", calls + "<eos>"))

    assert "Arguments of earlier calls are changed" in drifts_of(facts)


def test_a_template_that_refuses_system_messages_says_so():
    template = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"

    facts = templated(template + TURNS)

    assert facts.system is Shown.REFUSED
    assert not facts.drifts


def test_a_tokenizer_without_a_template_is_refused():
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = None

    with pytest.raises(DataError, check=has_code("template/missing")):
        facts_of(TokenizerRenderer(tokenizer), {2})


def test_control_words_are_listed():
    assert set(facts_for("hermes").control_words) >= {"<tool_call>", "<|im_end|>", "<eos>"}
    assert tokenizer_of("hermes").is_fast == facts_for("hermes").is_fast
