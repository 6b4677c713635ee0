"""What we learn of a conversation beside the masks of TRL's training templates, on the templates as models ship them.

TRL ships copies of chat templates with ``{% generation %}`` blocks around what the assistant writes. We find the same
from the template as it is: from behind the generation prompt to the token that ends the turn. TRL's blocks may hold
more: the part of the generation prompt that names the speaker, and what stands behind the end.
"""

import itertools
import json

import numpy as np
import pytest
from tests.libs.data.chat.template.shipped import ENDS, tokenizer_with
from tests.peers.released import FOLDER

from rlhf_data import load_conversations
from rlhf_data.chat.renderer import TokenizerRenderer
from rlhf_data.learned.options import ConversationColumns, SequenceOptions

TEMPLATES = FOLDER / "trl/chat_templates"
CONVERSATION = [
    {"role": "user", "content": "What is 2 and 2?"},
    {"role": "assistant", "content": "It is 4."},
    {"role": "user", "content": "And 3?"},
    {"role": "assistant", "content": "It is 7."},
]
NAMES = (
    "cohere2", "deepseek_r1_distill", "deepseekv3", "gemma", "gemma3", "gptoss", "lfm2_v2", "llama3",
    "nemotron_3_nano", "phi3", "qwen2_5", "qwen2_5_vl",
)  # fmt: skip
"""Templates whose training copies show the same text. Those of Qwen3 and Qwen3.5 add thoughts to earlier answers."""


def spans(tokenizer, ids, mask):
    """Return the text of each run of learned tokens."""
    pairs = itertools.groupby(zip(ids, mask, strict=True), key=lambda pair: bool(pair[1]))
    return [
        "".join(tokenizer.decode([int(token)]) for token, _ in run)
        for learned, run in pairs
        if learned
    ]


def by_trl(name):
    tokenizer = tokenizer_with((TEMPLATES / f"{name}_training.jinja").read_text(), ENDS[name])
    made = tokenizer.apply_chat_template(
        CONVERSATION, return_dict=True, return_assistant_tokens_mask=True
    )
    return made["input_ids"], spans(tokenizer, made["input_ids"], made["assistant_masks"])


def by_us(name, tmp_path):
    tokenizer = tokenizer_with((TEMPLATES / f"{name}.jinja").read_text(), ENDS[name])
    (tmp_path / "rows.jsonl").write_text(json.dumps({"messages": CONVERSATION}) + "\n")
    renderer = TokenizerRenderer(tokenizer)
    tokens = load_conversations(
        [str(tmp_path / "rows.jsonl")],
        ConversationColumns(messages_key="messages"),
        SequenceOptions(),
        renderer,
        eos=tokenizer.eos_token_id,
    ).columns.tokens.read()
    learned = spans(tokenizer, tokens.token_ids, tokens.action_mask)
    return tokens.token_ids, learned, renderer.generation_prompt


@pytest.mark.usefixtures("installed_peers")
@pytest.mark.parametrize("name", NAMES)
def test_what_is_learned_is_trls_mask_without_the_prompt_and_what_follows_the_end(name, tmp_path):
    their_ids, theirs = by_trl(name)
    our_ids, ours, prompt = by_us(name, tmp_path)

    assert np.array_equal(their_ids, our_ids)
    assert len(theirs) == len(ours) == 2
    for answer, their, our in zip(("It is 4.", "It is 7."), theirs, ours, strict=True):
        before, _, behind = their.partition(our)
        assert our in their
        assert answer in our
        assert before.strip() in prompt
        assert behind.strip() in ("", ENDS[name])
