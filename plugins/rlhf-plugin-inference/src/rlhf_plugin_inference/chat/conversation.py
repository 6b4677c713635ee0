"""A conversation as data: the messages so far, and the ways to change them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rlhf_core import ConfigError
from rlhf_core.contracts import Message
from rlhf_core.media import MediaRef

from ..worklist.image_files import with_files


class ChatHistory:
    """Messages of user and assistant in turn, behind a system prompt that may be changed at any time."""

    def __init__(self, system: str | None) -> None:
        self.system = system
        self._said: list[Message] = []
        self._waiting: list[MediaRef] = []
        self._files: dict[str, Path] = {}
        self.attempt = 0
        """Number of answers that the last question has had before."""

    @property
    def messages(self) -> tuple[Message, ...]:
        """The whole conversation, the system prompt included."""
        system = () if self.system is None else ({"role": "system", "content": self.system},)
        return (*system, *self._said)

    @property
    def turn(self) -> int:
        """Number of questions so far."""
        return sum(message["role"] == "user" for message in self._said)

    def attach(self, image: MediaRef, path: Path) -> None:
        """Put an image before the text of the user's next message.

        Args:
            path: its file, which ``save`` names.
        """
        self._waiting.append(image)
        self._files[image.sha256] = path.resolve()

    def ask(self, text: str) -> None:
        """Add the user's message, with the images that wait for it."""
        content: Any = text
        if self._waiting:
            shown = [{"type": "image", "media": image.fields()} for image in self._waiting]
            content = [*shown, {"type": "text", "text": text}]
            self._waiting.clear()
        self._said.append({"role": "user", "content": content})
        self.attempt = 0

    def answer(self, text: str) -> None:
        """Add the assistant's answer. A blank one takes back the question too: no template has a place for it."""
        if text.strip():
            self._said.append({"role": "assistant", "content": text})
        else:
            self._said.pop()

    def take_back_answer(self) -> bool:
        """Remove the last answer, so that its question is asked again; False where there is none."""
        if not self._said:
            return False
        self._said.pop()
        self.attempt += 1
        return True

    def take_back_question(self) -> None:
        """Remove a question that got no answer."""
        self._said.pop()

    def reset(self) -> None:
        """Forget everything but the system prompt."""
        self._said.clear()
        self._waiting.clear()

    def save(self, path: Path) -> None:
        """Append the conversation to a file as a row of ``rlhf sft --data.messages_key messages``; images are paths.

        Raises:
            ConfigError: the file cannot be written.
        """
        messages = with_files(self.messages, lambda image: str(self._files[image.sha256]))
        try:
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"messages": messages}) + "\n")
        except OSError as error:
            raise ConfigError(
                f"/save {path}: cannot be written: {error.strerror}", code="output/chat-not-saved"
            ) from error
