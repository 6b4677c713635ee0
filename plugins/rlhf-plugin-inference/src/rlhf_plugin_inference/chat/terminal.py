"""Lines in and out: a terminal with a prompt and colors, or a pipe with messages and answers alone."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Protocol

_BLOCK = '"""'
"""Line that begins and ends a message of several lines."""


class TalkEnds(Protocol):
    """The user's side of a conversation."""

    is_interactive: bool
    """True: somebody is there, to whom an error is said and who may stop an answer; False: an error ends the
    program."""

    def read(self) -> str | None:
        """Return the next message; None at the end of the input."""

    def show(self, piece: str) -> None:
        """Show a piece of an answer."""

    def end_answer(self) -> None:
        """Go to the next line."""

    def say(self, text: str) -> None:
        """Tell the user something that is no answer."""


class Pipe:
    """Messages on standard input, a line each, and answers on standard output; what is no answer goes to stderr."""

    is_interactive = False

    def read(self) -> str | None:
        while (message := read_message(self._line, self._line)) == "":
            continue
        return message

    def show(self, piece: str) -> None:
        print(piece, end="", flush=True)

    def end_answer(self) -> None:
        print(flush=True)

    def say(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    @staticmethod
    def _line() -> str | None:
        line = sys.stdin.readline()
        return line.removesuffix("\n") if line else None


class Terminal:
    """A terminal: with line editing and the lines before, and answers in a color of their own."""

    is_interactive = True

    def __init__(self) -> None:
        from rich.console import Console

        with suppress(ImportError):  # A Python without it edits no lines.
            import readline  # noqa: F401 - input() uses it once it is imported
        self._console = Console(highlight=False, soft_wrap=True)

    def read(self) -> str | None:
        while True:
            try:
                message = read_message(lambda: self._line("> "), lambda: self._line(". "))
            except KeyboardInterrupt:
                self.say("\nCtrl-D ends the program.")
                continue
            if message != "":
                return message

    def show(self, piece: str) -> None:
        self._console.print(piece, end="", markup=False, style="cyan")

    def end_answer(self) -> None:
        self._console.print()

    def say(self, text: str) -> None:
        self._console.print(text, markup=False, style="dim")

    @staticmethod
    def _line(prompt: str) -> str | None:
        try:
            return input(prompt)
        except EOFError:
            return None


class _Lines(Protocol):
    def __call__(self) -> str | None: ...


def read_message(first: _Lines, further: _Lines) -> str | None:
    r"""Return a message, which may have several lines: between lines of three quotes, or with ``\`` at their ends.

    Args:
        first: reads the first line; None at the end of the input.
        further: reads a line after it.

    Returns:
        The message without space around it, empty for a blank line; None at the end of the input.
    """
    line = first()
    if line is None:
        return None
    lines: list[str] = []
    if line.strip() == _BLOCK:
        while (line := further()) is not None and line.strip() != _BLOCK:
            lines.append(line)
    else:
        while line is not None and line.endswith("\\"):
            lines.append(line.removesuffix("\\"))
            line = further()
        lines.append(line or "")
    return "\n".join(lines).strip()
