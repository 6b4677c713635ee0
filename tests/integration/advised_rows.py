"""Rows, chat templates and tokenizers that cannot be used, read with the options of who follows the message."""

import json
from pathlib import Path
from typing import ClassVar

from tests.libs.data.learned.families import renderer_of
from tests.plugins.supervised.training.preferences.test_judged import rows_of
from transformers import PreTrainedTokenizer

from rlhf_data import (
    ConversationColumns,
    SequenceOptions,
    StepLabelColumns,
    TokenizerRenderer,
    load_conversations,
    load_step_labels,
    load_tokenizer,
)
from rlhf_data.learned.tokens import SpanTokenizer
from rlhf_data.made.players import Players
from rlhf_data.prompts import tokenize_rows
from rlhf_data.rows import PromptFormat
from rlhf_plugin_supervised.training.preferences.judged import mismatched
from rlhf_testing.tiny import tiny_tokenizer, write_tiny_model

from .advised_case import Advised

OTHER_LETTERS = "{% for m in messages %}{{ m.content | replace('w', 'W') }}{% endfor %}"
THINKING = (
    "{% if thinking %}{{ thinking }}{% endif %}{% for m in messages %}{{ m.content }}{% endfor %}"
)
CHANGING = (
    "{% set ns = namespace(more=false) %}"
    "{% for m in messages if m.role == 'developer' %}{% set ns.more = true %}{% endfor %}"
    "{% for m in messages %}{{ m.role | upper if ns.more else m.role }}:{{ m.content }}<eos>{% endfor %}"
    "{% if add_generation_prompt %}{{ 'ASSISTANT' if ns.more else 'assistant' }}:{% endif %}"
)
"""A template that shows all roles in another way once the developer says something."""


class Letters(PreTrainedTokenizer):
    """A tokenizer written in Python."""

    vocab_files_names: ClassVar = {}
    vocab_size = 2

    def get_vocab(self):
        return {"a": 0, "b": 1, **self.added_tokens_encoder}

    def _tokenize(self, text, **kwargs):
        return list(text)

    def _convert_token_to_id(self, token):
        return self.get_vocab().get(token, 0)

    def _convert_id_to_token(self, index):
        return "ab"[index]


def shown_with_other_letters(content, control_words):
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = OTHER_LETTERS
    TokenizerRenderer(tokenizer, control_words=control_words).render(
        [{"role": "user", "content": content}]
    )


def a_letter_that_is_a_control_token(text, control_words):
    tokenizer = Letters()
    tokenizer.add_tokens(["b"], special_tokens=True)
    TokenizerRenderer(tokenizer, control_words=control_words).encode(text)


def without_template(template, messages):
    """Read a prompt by a tokenizer of a base model."""
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = template
    prompt = [{"role": "user", "content": "1"}] if messages else "1"
    (found,) = tokenize_rows(
        [(0, {"prompt": prompt})], PromptFormat(), TokenizerRenderer(tokenizer), 99
    )
    if isinstance(found, Exception):
        raise found


def learned_without_template(template, rows):
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = template
    load_conversations(
        written(rows),
        ConversationColumns(),
        SequenceOptions(),
        TokenizerRenderer(tokenizer),
        eos=tokenizer.eos_token_id,
    )


def variables(given, control_words):
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = THINKING
    TokenizerRenderer(tokenizer, template_kwargs=given, control_words=control_words)


def variables_of_text(given, chat):
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = THINKING
    renderer = TokenizerRenderer(tokenizer, template_kwargs=given)
    (found,) = tokenize_rows([(0, {"prompt": "1"})], PromptFormat(chat=chat), renderer, 99)
    if isinstance(found, Exception):
        raise found


def written(rows):
    Path("rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return ["rows.jsonl"]


def conversations(learn, rows):
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = CHANGING
    columns = ConversationColumns(messages_key="messages", learn=learn)
    renderer = TokenizerRenderer(tokenizer)
    load_conversations(
        written(rows), columns, SequenceOptions(), renderer, eos=tokenizer.eos_token_id
    )


def messages_of_roles(rows, roles, template=None):
    renderer = renderer_of("qwen2", "characters")
    if template is not None:
        tokenizer = tiny_tokenizer()
        tokenizer.chat_template = template
        renderer = TokenizerRenderer(tokenizer)
    load_conversations(
        written(rows),
        ConversationColumns(roles=roles),
        SequenceOptions(),
        renderer,
        eos=renderer.tokenizer.eos_token_id,
    )


def steps(family, kind, row, **columns):
    renderer = renderer_of(family, kind)
    eos = renderer.tokenizer.eos_token_id
    load_step_labels(
        written([row]), StepLabelColumns(**columns), SequenceOptions(), renderer, eos=eos
    )


def tokens_of_characters(tokenizer):
    SpanTokenizer(TokenizerRenderer(tokenizer()), eos=0)


def players(shares, row):
    Players(shares).of(0, row)


def answers_beside_others(prompts):
    mismatched(rows_of(*(([prompt], [10]) for prompt in prompts)), 100)


def tokenizer_of(path, copied, has_option):
    write_tiny_model(Path("model"), hidden_size=16, num_layers=1, num_heads=2)
    Path("bare").mkdir()
    names = Path("model").iterdir() if copied else [Path("model/config.json")]
    for file in names:
        (Path("bare") / file.name).write_bytes(file.read_bytes())
    load_tokenizer(path, has_option=has_option)


TWO_TURNS = [
    {"role": "user", "content": "1"},
    {"role": "assistant", "content": "2"},
    {"role": "developer", "content": "3"},
    {"role": "assistant", "content": "4"},
]
TRIMMED = {"prompt": "1+1+1?\n", "completions": ["1+1=2", "2+1=4"], "labels": [True, False]}
JOINED = {"prompt": "x", "completions": ["Hi ", " Hello"], "labels": [True, True]}
AS_TOKENS = {"control_words": "tokens"}

ANSWERED = {"messages": TWO_TURNS[:2]}
USERS_WITH_SINGLE_BLANKS = (
    "{% for m in messages %}{{ m.role }}:"
    "{{ m.content.split() | join(' ') if m.role == 'user' else m.content }}<eos>{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)

ROWS_READ = {
    "rlhf_data/learned/weights.py:learned_messages": [
        Advised(
            call=messages_of_roles,
            wrong={
                "rows": [{"messages": [{**TWO_TURNS[0], "train": True}, TWO_TURNS[1]]}],
                "roles": ("assistant",),
            },
            told={
                "leave the field out": {"rows": [ANSWERED]},
                "name the role in --data.roles": {"roles": ("assistant", "user")},
            },
        )
    ],
    "rlhf_data/learned/said_messages.py:said_messages": [
        Advised(
            call=messages_of_roles,
            wrong={
                "rows": [{"messages": [{**TWO_TURNS[0], "content": "one  two"}, TWO_TURNS[1]]}],
                "roles": ("user", "assistant"),
                "template": USERS_WITH_SINGLE_BLANKS,
            },
            told={"leave the role out of --data.roles": {"roles": ("assistant",)}},
        )
    ],
    "rlhf_data/learned/conversations.py:texts": [
        Advised(
            call=messages_of_roles,
            wrong={"rows": [{"prompt": "1", "response": "2"}], "roles": ("user",)},
            told={
                "put the whole conversation into a column 'messages'": {"rows": [ANSWERED]},
                "or leave the option out": {"roles": ("assistant",)},
            },
            given=("--data.roles",),
        )
    ],
    "rlhf_data/chat/rendering.py:rendered": [
        Advised(
            call=without_template,
            wrong={"template": None, "messages": True},
            told={
                "Use an instruction-tuned model": {"template": CHANGING},
                "plain text prompts": {"messages": False},
                "or --model.tokenizer with a copy that has one": {"template": CHANGING},
            },
        )
    ],
    "rlhf_data/learned/chat_spans.py:__init__": [
        Advised(
            call=learned_without_template,
            wrong={"template": None, "rows": [{"messages": TWO_TURNS[:2]}]},
            told={
                "Use an instruction-tuned model": {"template": CHANGING},
                "plain text prompts": {"rows": [{"prompt": "1", "response": "2"}]},
                "or --model.tokenizer with a copy that has one": {"template": CHANGING},
            },
        )
    ],
    "rlhf_data/chat/quoting.py:restored": [
        Advised(
            call=shown_with_other_letters,
            wrong={"content": "<eos>", "control_words": "text"},
            told={
                "Leave such texts out": {"content": "1"},
                "let them be control tokens with --data.control_words tokens": AS_TOKENS,
            },
        )
    ],
    "rlhf_data/chat/spelling.py:_check": [
        Advised(
            call=a_letter_that_is_a_control_token,
            wrong={"text": "ab", "control_words": "text"},
            told={
                "Leave such texts out": {"text": "a"},
                "let them be control tokens with --data.control_words tokens": AS_TOKENS,
            },
        )
    ],
    "rlhf_data/chat/template_kwargs.py:refuse_words": [
        Advised(
            call=variables,
            wrong={"given": {"thinking": "<eos>"}, "control_words": "text"},
            told={"Leave it out": {"given": {}}, "set --data.control_words tokens": AS_TOKENS},
            given=("--data.chat_template_kwargs",),
        )
    ],
    "rlhf_data/learned/skeleton.py:_opening_by_prompt": [
        Advised(
            call=conversations,
            wrong={"learn": "all", "rows": [{"messages": TWO_TURNS}]},
            told={
                "Learn the last turn only (--data.learn last)": {"learn": "last"},
                "give each turn a row of its own": {
                    "rows": [{"messages": TWO_TURNS[:2]}, {"messages": TWO_TURNS[2:]}]
                },
            },
        )
    ],
    "rlhf_data/learned/steps.py:_place_of": [
        Advised(
            call=steps,
            wrong={"family": "llama3", "kind": "characters", "row": TRIMMED, "chat": True},
            told={"choose a --data.separator that is not blank": {"separator": "#"}},
        )
    ],
    "rlhf_data/learned/steps.py:sequences": [
        Advised(
            call=steps,
            wrong={"family": "zephyr", "kind": "bpe", "row": JOINED, "separator": "[/INST]"},
            told={
                "Choose a separator that is a token of its own, such as an added one": {
                    "separator": "<|user|>"
                }
            },
            given=("--data.separator",),
        )
    ],
    "rlhf_data/learned/tokens.py:__init__": [
        Advised(
            call=tokens_of_characters,
            wrong={"tokenizer": Letters},
            told={
                "Convert it": {"tokenizer": tiny_tokenizer},
                "name another folder with --model.tokenizer": {"tokenizer": tiny_tokenizer},
            },
        )
    ],
    "rlhf_data/made/players.py:of": [
        Advised(
            call=players,
            wrong={"shares": {"maze": 0.5, "lake": 0.5}, "row": {"environment": "sea"}},
            told={
                "Correct it": {"row": {"environment": "lake"}},
                "add the environment with --env": {
                    "shares": {"maze": 0.5, "lake": 0.25, "sea": 0.25}
                },
            },
        )
    ],
    "rlhf_data/prompts.py:check_plain": [
        Advised(
            call=variables_of_text,
            wrong={"given": {"thinking": "1"}, "chat": False},
            told={"Add --data.chat": {"chat": True}, "leave them out": {"given": {}}},
            given=("--data.chat_template_kwargs",),
        )
    ],
    "rlhf_data/tokenizer.py:load_tokenizer": [
        Advised(
            call=tokenizer_of,
            wrong={"path": "bare", "copied": False, "has_option": True},
            told={
                "Copy the tokenizer's files there": {"copied": True},
                "name its folder with --model.tokenizer": {"path": "model"},
            },
        ),
    ],
    "rlhf_plugin_supervised/training/preferences/judged.py:_shift": [
        Advised(
            call=answers_beside_others,
            wrong={"prompts": (1, 1)},
            told={
                "Add rows with another": {"prompts": (1, 1, 2)},
                "hold more of them out (--eval.fraction)": {"prompts": (1, 2, 1, 2)},
            },
        )
    ],
}
"""Place -> calls, one for each message."""
