"""Lists of what is missing of a run, in lines for the reader of its page."""

from __future__ import annotations

from collections import Counter

_LONGEST = 300


class Problems:
    """Notes on what could not be read or shown, each kind once, with a number and the first case."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._first: dict[str, str] = {}

    def note(self, what: str, case: str = "", *, count: int = 1) -> None:
        """Add a note.

        Args:
            what: kind of problem, in a sentence without its end.
            case: place and reason of this case; that of the first one is shown.
            count: number of cases.
        """
        self._counts[what] += count
        self._first.setdefault(what, case)

    def lines(self) -> list[str]:
        """Return a line for each kind of problem, in the order in which they came."""
        return [self._line(what) for what in self._counts]

    def _line(self, what: str) -> str:
        number, case = self._counts[what], self._first[what]
        times = f" ({number} times)" if number > 1 else ""
        text = f"{what}{times}" + (f"; first: {case}" if case and number > 1 else "")
        text = f"{what}: {case}" if case and number == 1 else text
        return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
