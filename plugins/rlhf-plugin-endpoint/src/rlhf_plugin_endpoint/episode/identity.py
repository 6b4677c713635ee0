"""Identity of messages: what has to be equal for a client's message to be one that the policy wrote or read before.

Clients rewrite what they got: null contents become empty ones, keys change places, JSON is written with other spaces,
1.0 becomes 1, white space at the ends of an answer goes. None of this is another message. Ids of tool calls belong to
the identity, since equal calls of parallel branches differ in nothing else; ids that a client rewrote are put back
before (``CallNames``). An image is its bytes, wherever they came
from.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from rlhf_core.contracts import Message
from rlhf_core.media import references_in

from ..dialects.anthropic_messages import call_input
from ..dialects.request_images import joined

_OPTIONS = orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS


def digest_of(*parts: bytes) -> bytes:
    """Return 16 bytes that differ for different parts."""
    if len(parts) == 2:
        # What follows makes the same bytes, at twice the cost; each request needs several.
        whole = b"%d,%d:%b:%b" % (len(parts[0]), len(parts[1]), *parts)
    else:
        lengths = b",".join(b"%d" % len(part) for part in parts)
        whole = b":".join((lengths, *parts))
    return hashlib.blake2b(whole, digest_size=16).digest()


def start_of(
    tools: Sequence[Mapping[str, Any]], template_kwargs: Mapping[str, Any] | None = None
) -> bytes:
    """Return the digest of a conversation without messages: tools and the template's variables belong to it, for
    templates show them first."""
    shown = orjson.dumps(list(tools), option=_OPTIONS)
    if not template_kwargs:
        return digest_of(shown)
    return digest_of(shown, orjson.dumps(dict(template_kwargs), option=_OPTIONS))


def with_message(before: bytes, message: Message, *, reasoning: bool = True) -> bytes:
    """Return the digest of a conversation and one more message.

    Args:
        reasoning: what an assistant thought belongs to its message.
    """
    # The first part has 16 bytes always, so that no other two parts make the same whole.
    return hashlib.blake2b(before + _identity(message, reasoning), digest_size=16).digest()


def chain_of(start: bytes, messages: Sequence[Message]) -> list[bytes]:
    """Return the digest of the conversation up to each message, that message included; ``start`` is ``start_of``."""
    chain: list[bytes] = []
    digest = start
    for message in messages:
        digest = with_message(digest, message)
        chain.append(digest)
    return chain


def _identity(message: Message, reasoning: bool) -> bytes:
    role, content = message["role"], message["content"]
    if role != "assistant":
        plain = (role, _plain_content(content), message.get("tool_call_id", ""))
        return orjson.dumps(plain)
    if len(message) == 2:  # neither calls nor a thought
        return orjson.dumps((role, content.strip(), (), ""))
    calls = [
        (call["id"], call["function"]["name"], _arguments(call["function"]["arguments"]))
        for call in message.get("tool_calls") or ()
    ]
    thought = (message.get("reasoning_content") or "").strip() if reasoning else ""
    return orjson.dumps((role, content.strip(), calls, thought), option=_OPTIONS)


def _plain_content(content: Any) -> Any:
    """Return a content in which texts side by side are one, and images are their digests."""
    if not isinstance(content, list | tuple):
        return content
    return joined(
        [
            part["text"]
            if part.get("type") == "text"
            else {"type": "image", "image": _digest(part)}
            for part in content
        ]
    )


def _digest(part: Mapping[str, Any]) -> str:
    (image,) = references_in([{"content": [part]}])
    return image.identity


def _arguments(arguments: object) -> object:
    return _plain(arguments if isinstance(arguments, dict) else call_input(str(arguments)))


def _plain(value: object) -> object:
    """Return a JSON value in which 1.0 is 1."""
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
