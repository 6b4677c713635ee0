"""An example conversation as tokens, in the parts of which an episode is made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .probing import AGAIN, ANSWER, USER, sampled_conversation
from .renderer import TokenizerRenderer


@dataclass(frozen=True, slots=True)
class ExamplePart:
    """Tokens of one part of a conversation."""

    name: str
    token_ids: tuple[int, ...]
    tokens: tuple[str, ...]


def example_parts(
    renderer: TokenizerRenderer, tools: Sequence[Mapping[str, Any]] = ()
) -> list[ExamplePart]:
    """Return a prompt, the policy's answer, and what comes before its next turn.

    Raises:
        DataError: the template refuses a question and an answer.
    """
    prompt = renderer.render([USER], tools)
    ids = sampled_conversation(renderer, [USER, ANSWER], tools)
    following = renderer.extend([USER, ANSWER], ids, [AGAIN], ended=True, tools=tools).token_ids
    parts = {
        "prompt": prompt,
        "answer": ids[len(prompt) :],
        "next prompt": following[len(ids) :],
    }
    return [
        ExamplePart(
            name,
            tuple(part),
            tuple(renderer.decode_batch([[token] for token in part], skip_special_tokens=False)),
        )
        for name, part in parts.items()
    ]
