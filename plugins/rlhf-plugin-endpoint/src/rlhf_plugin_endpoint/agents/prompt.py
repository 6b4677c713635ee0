"""A task's prompt as an agent gets it: messages that it can send as they are."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

from rlhf_core.contracts import Message
from rlhf_core.media import ImageReader, MediaStore, image_parts, references_in


def as_sent(messages: Sequence[Message], images: ImageReader | None) -> tuple[Message, ...]:
    """Return messages as clients of OpenAI send them: each image is an ``image_url`` part with a data URL.

    Args:
        images: has the run's store; None: the policy reads text alone.

    Raises:
        DataError: the store has lost an image.
    """
    store = None if images is None else images.loader.store
    if store is None:
        return tuple(messages)
    return tuple(
        {**message, "content": [_sent(part, store) for part in message["content"]]}
        if any(image_parts([message]))
        else message
        for message in messages
    )


def text_in(message: Message) -> str:
    """Return the text of a message, without its images."""
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "".join(str(part.get("text") or "") for part in content)


def _sent(part: Any, store: MediaStore) -> Any:
    images = references_in([{"content": [part]}])
    if not images:
        return part
    (image,) = images
    encoded = base64.b64encode(store.read(image)).decode("ascii")
    return {
        "type": "image_url",
        "image_url": {"url": f"data:image/{image.format};base64,{encoded}"},
    }
