"""Processor time of a chat's turns between the policy's answer and its next one, early and late in a long episode.

    python benchmarks/long_chats.py --turns 100

A turn is one call of ``extend``, as the executor ``multi_turn`` makes it after each answer: questions and answers of
400 characters, and calls of a tool with results as long. ``as_template`` compares each time with a new rendering.
"""

from __future__ import annotations

import argparse
import time

from rlhf_data.chat.renderer import TokenizerRenderer
from rlhf_testing.tiny import tiny_tokenizer

TEXT = "There is something to say here, and it is said. " * 8
CHATML = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% for c in m.tool_calls or [] %}"
    "{{ c.function | tojson }}{% endfor %}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
CALL = {"id": "call00000", "type": "function", "function": {"name": "look", "arguments": {"at": 1}}}


def main() -> None:
    """Print a line for each kind of conversation and of history."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--turns", type=int, default=100)
    num_turns = parser.parse_args().turns
    marks = sorted({1, num_turns // 10, num_turns // 2, num_turns} - {0})
    print("milliseconds of processor time, turn:", *(f"{mark:>8}" for mark in marks))
    for kind in ("questions", "tools"):
        for as_template in (False, True):
            spent = seconds_by_turn(kind, num_turns, as_template=as_template)
            shown = (f"{1000 * spent[mark - 1]:8.2f}" for mark in marks)
            history = "as_template" if as_template else "as_sampled"
            print(f"{kind:>12}, {history:<12}            ", *shown)


def seconds_by_turn(kind: str, num_turns: int, *, as_template: bool) -> list[float]:
    """Return the processor time of each turn's ``extend``, the smallest of three."""
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = CHATML
    renderer = TokenizerRenderer(tokenizer)
    if kind == "tools":
        answer = {"role": "assistant", "content": TEXT, "tool_calls": [CALL]}
        following = {"role": "tool", "content": TEXT, "tool_call_id": "call00000"}
    else:
        answer = {"role": "assistant", "content": TEXT}
        following = {"role": "user", "content": TEXT}
    conversation = [{"role": "user", "content": TEXT}]
    token_ids = renderer.render(conversation)
    written = renderer.encode(TEXT)
    renderer.extend([*conversation, answer], token_ids, [following], ended=True)
    spent = []
    for _ in range(num_turns):
        conversation.append(answer)
        token_ids += written
        times = []
        for _ in range(3):
            start = time.process_time()
            made = renderer.extend(
                conversation, token_ids, [following], ended=True, as_template=as_template
            )
            times.append(time.process_time() - start)
        spent.append(min(times))
        conversation.append(following)
        token_ids = list(made.token_ids)
    return spent


if __name__ == "__main__":
    main()
