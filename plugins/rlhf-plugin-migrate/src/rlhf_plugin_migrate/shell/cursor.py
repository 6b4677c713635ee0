"""A place in the text of a script: characters one by one, with the line that they are on."""

from __future__ import annotations

from rlhf_core import ConfigError


class TextCursor:
    """The rest of a text."""

    def __init__(self, text: str, line: int) -> None:
        self.text = text.replace("\r\n", "\n")
        self.at = 0
        self.line = line
        self.began = line
        """Line on which the command begins, for messages."""

    def is_at_end(self) -> bool:
        """Return whether no character is left."""
        return self.at >= len(self.text)

    def next(self) -> str:
        """Return the next character, and go behind it.

        Raises:
            ConfigError: there is none, so that something is left open.
        """
        if self.is_at_end():
            raise ConfigError(
                f"the command that begins on line {self.began} does not end: a quote, a bracket or a backslash "
                "is open at the end of the text",
                code="migrate/open-quote",
            )
        character = self.text[self.at]
        self.at += 1
        self.line += character == "\n"
        return character

    def peek(self) -> str:
        """Return the next character; empty at the end."""
        return self.text[self.at : self.at + 1]

    def until(self, end: str) -> str:
        """Return the text up to a character, and go behind it."""
        found = ""
        while (character := self.next()) != end:
            found += character
        return found

    def balanced(self, opening: str, closing: str) -> str:
        """Return the text up to the bracket that closes the one before it, and go behind that."""
        found, depth = "", 1
        while True:
            character = self.next()
            depth += (character == opening) - (character == closing)
            if depth == 0:
                return found
            found += character

    def line_of_text(self) -> str | None:
        """Return the text up to the end of the line, and go behind it; None at the end of the text."""
        if self.is_at_end():
            return None
        end = self.text.find("\n", self.at)
        end = len(self.text) if end < 0 else end
        line = self.text[self.at : end]
        self.at = min(end + 1, len(self.text))
        self.line += 1
        return line

    def skip_to_newline(self) -> None:
        """Go to the end of the line."""
        end = self.text.find("\n", self.at)
        self.at = len(self.text) if end < 0 else end
