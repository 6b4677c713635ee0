"""Chat templates that end no turn (GLM-4): a turn ends where the token of the next role begins.

The policy ends its turn by writing that token, so it is learned behind the last answer too, ends generation, and is
not written twice in a conversation that goes on.
"""

import pytest
from tests.libs.data.chat.template.shipped import FOLDER
from tests.libs.data.chat.template.shipped import renderer_of as shipped_renderer
from tests.libs.data.learned.families import bpe
from tokenizers import AddedToken

from rlhf_data import (
    ConversationColumns,
    PairColumns,
    SequenceOptions,
    load_conversations,
    load_pairs,
)
from rlhf_data.chat.renderer import TokenizerRenderer
from rlhf_data.tokenizer import end_of_turn, eos_token_ids
from rlhf_testing.tiny import write_tiny_model

ROLES = ("<|system|>", "<|user|>", "<|assistant|>", "<|observation|>")
GLM_4 = (
    "[gMASK]<sop>{% for m in messages %}<|{{ 'observation' if m.role == 'tool' else m.role }}|>\n{{ m.content }}"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
"""The form of GLM-4-9B-Chat, written anew."""
GLM_4_5 = (FOLDER / "glm4moe.jinja").read_text(encoding="utf-8")
ASKED, SAID = {"role": "user", "content": "Why?"}, {"role": "assistant", "content": "So."}
MORE = {"role": "user", "content": "And?"}
both = pytest.mark.parametrize("template", [GLM_4, GLM_4_5], ids=["glm4", "glm4moe"])


def renderer_of(template):
    tokenizer = bpe(words=True)
    words = [
        AddedToken(word, special=True)
        for word in ("[gMASK]", "<sop>", *ROLES, "<think>", "</think>")
    ]
    tokenizer.add_special_tokens({"eos_token": "<|endoftext|>", "additional_special_tokens": words})
    tokenizer.chat_template = template
    return TokenizerRenderer(tokenizer)


def learned_of(renderer, rows):
    """The learned text of each sequence, with the tokens of roles."""
    columns = rows.columns
    return [
        renderer.decode(
            columns.token_ids[start:end][columns.action_mask[start:end]].tolist(),
            skip_special_tokens=False,
        )
        for start, end in zip(columns.token_offsets, columns.token_offsets[1:], strict=False)
    ]


def load(load_rows, columns, renderer, path):
    eos = renderer.tokenizer.eos_token_id
    return load_rows([path], columns, SequenceOptions(), renderer, eos=eos)


@both
def test_the_token_of_the_next_role_is_learned_behind_every_answer(write_rows, template):
    renderer = renderer_of(template)
    path = write_rows([{"messages": [ASKED, SAID]}, {"messages": [ASKED, SAID, MORE, SAID]}])

    found = learned_of(renderer, load(load_conversations, ConversationColumns(), renderer, path))

    ends = [one.count("So.<|user|>") for one in found]
    assert ends == [1, 2], found
    assert all(one.endswith("So.<|user|>") for one in found)


def test_an_answer_before_results_of_a_tool_ends_with_their_token(write_rows):
    renderer = renderer_of(GLM_4)
    path = write_rows([{"messages": [ASKED, SAID, {"role": "tool", "content": "3"}, SAID]}])

    (found,) = learned_of(renderer, load(load_conversations, ConversationColumns(), renderer, path))

    assert found == "So.<|observation|>So.<|user|>"


def test_the_word_in_an_answer_stays_a_word(write_rows):
    """Only the token that ends the turn is one."""
    renderer = renderer_of(GLM_4)
    path = write_rows([{"messages": [ASKED, {"role": "assistant", "content": "Not <|user|>."}]}])

    rows = load(load_conversations, ConversationColumns(), renderer, path)

    token = renderer.tokenizer.convert_tokens_to_ids("<|user|>")
    learned = rows.columns.token_ids[rows.columns.action_mask]
    assert learned_of(renderer, rows) == ["Not <|user|>.<|user|>"]
    assert (learned == token).nonzero()[0].tolist() == [len(learned) - 1]


@both
def test_both_answers_of_a_pair_end_with_it(write_rows, template):
    renderer = renderer_of(template)
    row = {"prompt": [ASKED], "chosen": [SAID], "rejected": [{**SAID, "content": "No."}]}

    found = learned_of(renderer, load(load_pairs, PairColumns(), renderer, write_rows([row])))

    expected = ("So.<|user|>", "No.<|user|>")
    assert len(found) == 2
    assert all(one.endswith(end) for one, end in zip(found, expected, strict=True)), found


@both
def test_it_ends_generation(tmp_path, template):
    renderer = renderer_of(template)
    token = renderer.tokenizer.convert_tokens_to_ids("<|user|>")
    model = write_tiny_model(tmp_path / "model", hidden_size=16, num_layers=1, num_heads=2)

    assert renderer.end_of_turn == []
    assert end_of_turn(renderer.tokenizer) == token
    assert token in eos_token_ids(renderer.tokenizer, str(model))


@pytest.mark.parametrize("as_template", [False, True])
@pytest.mark.parametrize("ended", ["<|user|>", "<|endoftext|>", None])
def test_a_conversation_goes_on_with_one_token_of_the_role(as_template, ended):
    """It was there twice where the policy had written it, and a new rendering forked at each turn."""
    renderer = renderer_of(GLM_4)
    prompt = renderer.render([ASKED])
    written = renderer.encode("So.")
    if ended is not None:
        written = [*written, renderer.tokenizer.convert_tokens_to_ids(ended)]

    found = renderer.extend(
        [ASKED, SAID],
        [*prompt, *written],
        [MORE],
        ended=ended is not None,
        as_template=as_template,
    )

    text = renderer.decode(found.token_ids, skip_special_tokens=False)
    extra = "<|endoftext|>" if ended == "<|endoftext|>" and not as_template else ""
    assert text == (
        f"[gMASK]<sop><|user|>\nWhy?<|assistant|>\nSo.{extra}<|user|>\nAnd?<|assistant|>\n"
    )
    assert found.forked is (as_template and ended == "<|endoftext|>")


def test_a_template_with_ends_has_no_other():
    renderer = renderer_of(GLM_4.replace("{{ m.content }}", "{{ m.content }}<|endoftext|>"))

    assert renderer.closing == renderer.end_of_turn
    assert renderer.end_of_turn == [renderer.tokenizer.eos_token_id]


@pytest.mark.parametrize("learn", ["all", "last"])
def test_a_template_with_blocks_and_no_end_learns_the_end_of_texts_behind_the_last_answer(
    write_rows, learn
):
    """LLaVA 1.5: a model that was trained on it went on for ever."""
    renderer = shipped_renderer("llava_1_5")
    path = write_rows([{"messages": [ASKED, SAID, MORE, SAID]}])

    rows = load(load_conversations, ConversationColumns(learn=learn), renderer, path)

    expected = "So. </s>" if learn == "last" else "So. So. </s>"
    assert learned_of(renderer, rows) == [expected]
