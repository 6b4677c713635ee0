"""The tokens between two turns equal those of the whole conversation rendered at once, for templates of every style."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhf_core.errors import DataError
from rlhf_data.chat.control_words import ControlText
from rlhf_data.chat.renderer import TokenizerRenderer
from rlhf_testing.errors import has_code
from rlhf_testing.tiny import tiny_tokenizer

CHATML = (
    "{% if messages[0]['role'] != 'system' %}<|im_start|>system\nYou are helpful.<|im_end|>\n{% endif %}"
    "{% for m in messages %}{% if m['role'] == 'tool' %}<|im_start|>user\n<tool_response>\n"
    "{{ m['content'] }}\n</tool_response><|im_end|>\n"
    "{% else %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLAMA3 = (
    "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m['role'] }}<|end_header_id|>\n\n"
    "{{ m['content'] | trim }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
MISTRAL = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% if m['role'] == 'user' %}[INST] {{ m['content'] }} [/INST]"
    "{% else %} {{ m['content'] }}</s>{% endif %}{% endfor %}"
)
GEMMA = (
    "{{ bos_token }}{% for m in messages %}<start_of_turn>"
    "{{ 'model' if m['role'] == 'assistant' else m['role'] }}\n{{ m['content'] | trim }}<end_of_turn>\n"
    "{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
THINKING = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{% if m['role'] == 'assistant' and loop.last %}<think>\n\n</think>\n\n{% endif %}"
    "{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
)
PLAIN = (  # no end token at all: a new line ends a turn
    "{% for m in messages %}{{ m['role'] | upper }}: {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}ASSISTANT: {% endif %}"
)
STYLES = {
    "chatml": (CHATML, ["<|im_start|>", "<|im_end|>"], "<|im_end|>"),
    "llama3": (LLAMA3, ["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"], "<|eot_id|>"),
    "mistral": (MISTRAL, ["</s>", "[INST]", "[/INST]"], "</s>"),
    "gemma": (GEMMA, ["<start_of_turn>", "<end_of_turn>"], "<end_of_turn>"),
    "thinking": (THINKING, ["<|im_start|>", "<|im_end|>"], "<|im_end|>"),
    "tiny": (None, [], "<eos>"),
    "plain": (PLAIN, [], None),
}
OPENING = [{"role": "user", "content": "What is 2+2?"}]
FOLLOW_UP = {
    "one": [{"role": "user", "content": "Sure?"}],
    "two": [{"role": "tool", "content": "5"}, {"role": "user", "content": "And now?"}],
}


def bpe_tokenizer():
    """A byte-pair tokenizer in which many letter pairs, spaces and new lines merge."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    from tokenizers.decoders import ByteLevel
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<pad>", "<bos>", "<eos>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    corpus = ["user\nassistant\n\nsystem tool_response What is this? Sure? And now?\n" * 4]
    tokenizer.train_from_iterator(corpus, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>"
    )


def renderer_of(style: str, make=bpe_tokenizer) -> TokenizerRenderer:
    template, special, _ = STYLES[style]
    tokenizer = tiny_tokenizer() if style == "tiny" and make is bpe_tokenizer else make()
    if template is not None:
        tokenizer.chat_template = template
    tokenizer.add_special_tokens({"additional_special_tokens": special})
    return TokenizerRenderer(tokenizer)


RENDERER = TokenizerRenderer(bpe_tokenizer())
CASES = [
    (style, follow_up)
    for style in STYLES
    for follow_up in FOLLOW_UP
    if (style, follow_up) != ("mistral", "two")  # its template knows no tool messages
]


@pytest.mark.parametrize(("style", "follow_up"), CASES)
@pytest.mark.parametrize("answer", ["4", "four, I think", "4\n\n5"])
def test_prompt_answer_and_next_turn_equal_the_whole_conversation(style, follow_up, answer):
    renderer, end, messages = renderer_of(style), STYLES[style][2], FOLLOW_UP[follow_up]
    # mistral's template writes the space before an answer itself
    written = renderer.encode((" " if style == "mistral" else "") + answer)
    ended = [renderer.tokenizer.convert_tokens_to_ids(end)] if end else []

    turns = [
        *renderer.render(OPENING),
        *written,
        *ended,
        *renderer.render_next(messages, ended=bool(ended)),
    ]

    conversation = [*OPENING, {"role": "assistant", "content": answer}, *messages]
    if style == "thinking":
        # the prompt opened a thought, which the template drops from earlier turns: compare what follows the answer
        opened = renderer.render_text(OPENING)
        assert renderer.tokenizer.decode(turns) == opened + renderer.render_text(
            conversation
        ).split("assistant\n", 1)[1].removeprefix("<think>\n")
    else:
        assert turns == renderer.render(conversation)


@pytest.mark.parametrize("style", STYLES)
def test_a_turn_that_was_cut_off_gets_the_templates_end(style):
    renderer, end = renderer_of(style), STYLES[style][2]
    messages = FOLLOW_UP["one"]

    cut, ended = (renderer.render_next(messages, ended=flag) for flag in (False, True))

    head = renderer.tokenizer.convert_tokens_to_ids([end]) if end else []
    assert cut == head + ended


def test_any_end_token_stands_for_the_templates():
    """A base model may end with its own token where the chat template has another; it is not doubled."""
    renderer = renderer_of("chatml")
    text = renderer.decode(
        renderer.render_next(FOLLOW_UP["one"], ended=True), skip_special_tokens=False
    )

    assert text == "\n<|im_start|>user\nSure?<|im_end|>\n<|im_start|>assistant\n"


def test_no_messages_still_close_the_turn_and_open_the_next():
    renderer = renderer_of("chatml")

    text = renderer.decode(renderer.render_next([], ended=False), skip_special_tokens=False)

    assert text == "<|im_end|>\n<|im_start|>assistant\n"


def test_what_follows_is_tokenised_in_its_place():
    """A tokenizer that puts a space before the start of a text must not put one between two turns."""
    from tokenizers import pre_tokenizers

    def make():
        tokenizer = bpe_tokenizer()
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
        return tokenizer

    renderer = renderer_of("plain", make)
    text = renderer.decode(renderer.render_next(FOLLOW_UP["one"], ended=False))

    assert text == "\nUSER: Sure?\nASSISTANT: "


def test_messages_without_a_chat_template_are_an_error():
    tokenizer = bpe_tokenizer()
    renderer = TokenizerRenderer(tokenizer)

    with pytest.raises(DataError, check=has_code("template/missing")):
        renderer.render(OPENING)
    with pytest.raises(DataError, check=has_code("template/missing")):
        renderer.render_next(OPENING, ended=True)


def test_tools_are_shown_by_the_template():
    tokenizer = bpe_tokenizer()
    tokenizer.chat_template = (
        "{% for t in tools or [] %}{{ t.name }}\n{% endfor %}{{ messages[0].content }}"
    )
    renderer = TokenizerRenderer(tokenizer)

    assert renderer.render_text(OPENING, tools=[{"name": "look"}]) == "look\nWhat is 2+2?"
    assert renderer.render_text(OPENING) == "What is 2+2?"


def test_what_a_template_refuses_is_passed_on():
    with pytest.raises(
        DataError,
        match="refuses the messages: roles must alternate",
        check=has_code("data/chat-template"),
    ):
        renderer_of("mistral").render([*OPENING, *OPENING])


def test_a_template_that_hides_answers_is_refused():
    tokenizer = bpe_tokenizer()
    tokenizer.chat_template = "{% for m in messages %}{{ m['role'] }}\n{% endfor %}"

    with pytest.raises(DataError, check=has_code("template/changes-text")):
        TokenizerRenderer(tokenizer).render_next(OPENING, ended=True)


@pytest.mark.parametrize(
    ("post", "prefix"),
    [(None, []), ("<bos> $A", ["<bos>"]), ("$A <eos>", []), ("<bos> $A <eos>", ["<bos>"])],
)
def test_text_prompts_start_as_the_tokenizer_starts_texts(post, prefix):
    """With its BOS, if it has one, and without the EOS that some put behind."""
    from tokenizers.processors import TemplateProcessing

    tokenizer = bpe_tokenizer()
    ids = {name: tokenizer.convert_tokens_to_ids(name) for name in ("<bos>", "<eos>")}
    if post:
        tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
            single=post, special_tokens=list(ids.items())
        )
    renderer = TokenizerRenderer(tokenizer)

    (tokens,) = renderer.encode_prompts([ControlText(text="What is this?")])

    assert tokens == [ids[name] for name in prefix] + renderer.encode("What is this?")
    assert renderer.encode_prompts([ControlText(text="<bos>What")])[0].count(ids["<bos>"]) == 1


@given(st.text(alphabet=st.characters(codec="utf-8")))
def test_text_survives_encoding_and_decoding(text):
    assert RENDERER.decode(RENDERER.encode(text), skip_special_tokens=False) == text


def test_special_tokens_are_left_out_on_request():
    renderer = renderer_of("tiny")
    ids = [*renderer.encode("4"), renderer.tokenizer.eos_token_id]

    assert renderer.decode(ids) == "4"
    assert renderer.decode(ids, skip_special_tokens=False) == "4<eos>"


def test_nothing_encodes_to_nothing():
    renderer = renderer_of("tiny")

    assert renderer.encode("") == []
    assert renderer.encode_batch([]) == []
    assert renderer.decode([]) == ""


def test_the_renderer_keeps_its_contract():
    from rlhf_core.contracts import Renderer

    renderer: Renderer = RENDERER
    assert json.dumps(renderer.encode("a"))  # plain integers, as JSON pipes need them


class Polite:
    """A tokenizer whose class changes what decoding returns."""

    def _decode(self, *args, **options):
        return super()._decode(*args, **options) + "!"


def tokenizers_to_decode():
    plain = bpe_tokenizer()
    polite = bpe_tokenizer()
    polite.__class__ = type("PoliteTokenizer", (Polite, type(polite)), {})
    return {"plain": plain, "changed": polite}


@pytest.mark.parametrize("kind", ["plain", "changed"])
@pytest.mark.parametrize("skip_special_tokens", [True, False])
def test_many_sequences_are_decoded_as_each_alone(kind, skip_special_tokens):
    renderer = TokenizerRenderer(tokenizers_to_decode()[kind])
    sequences = [renderer.encode(text) for text in ("Hello , world", "a  b", "naïve 😀")]
    sequences += [[], [*renderer.encode("end"), renderer.tokenizer.eos_token_id]]
    options = {"skip_special_tokens": skip_special_tokens}

    texts = renderer.decode_batch(sequences, **options)

    assert texts == [renderer.decode(one, **options) for one in sequences]
    assert texts[0] == "Hello , world" + ("!" if kind == "changed" else "")


def test_tools_reach_the_template_of_the_next_turn():
    tokenizer = bpe_tokenizer()
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m.content }}\n{% endfor %}"
        "{% for t in tools or [] %}{{ t.name }}\n{% endfor %}"
    )
    renderer = TokenizerRenderer(tokenizer)

    text = renderer.decode(
        renderer.render_next(FOLLOW_UP["one"], ended=False, tools=[{"name": "look"}])
    )

    assert text == "\nSure?\nlook\n"


def test_an_extended_conversation_keeps_its_tokens():
    renderer = renderer_of("chatml")
    sampled = [7, 8, 9]

    continued = renderer.extend(OPENING, sampled, FOLLOW_UP["one"], ended=True)

    following = renderer.render_next(FOLLOW_UP["one"], ended=True)
    assert continued.token_ids == (*sampled, *following)
    assert not continued.forked


def test_an_answer_without_marks_is_its_text():
    renderer = renderer_of("chatml")

    end = renderer.tokenizer.convert_tokens_to_ids("<|im_end|>")

    answer = renderer.parse([*renderer.encode("so"), end])

    assert (answer.text, answer.content, answer.tool_calls) == ("so", None, ())
