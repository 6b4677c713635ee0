"""Branches of ``if`` and ``case``: those that a script does not take do not count.

Where only a shell could say which branch is taken, all branches of an ``if`` count, and of a ``case`` the first one.
"""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass, field

from .conditions import holds, is_test, joined


@dataclass(slots=True)
class _If:
    line: int
    in_condition: bool = True
    verdicts: list[bool | None] = field(default_factory=list)
    joints: list[str] = field(default_factory=list)
    shown: list[str] = field(default_factory=list)
    earlier: bool | None = False
    """Whether an earlier branch is taken."""
    live: bool | None = True

    def decide(self) -> None:
        """Begin the branch behind ``then``."""
        verdict = joined(self.verdicts, self.joints[:-1])
        self._enter(verdict)
        self.verdicts, self.joints, self.in_condition = [], [], False

    def begin_else(self) -> None:
        self._enter(True)

    def _enter(self, verdict: bool | None) -> None:
        self.live = False if self.earlier else verdict
        if self.live is True and self.earlier is None:
            self.live = None
        self.earlier = self.earlier or verdict if verdict is not False else self.earlier


@dataclass(slots=True)
class _Case:
    line: int
    subject: str
    patterns: list[str] = field(default_factory=list)
    in_pattern: bool = True
    is_taken: bool = False
    live: bool | None = False

    @property
    def is_decided(self) -> bool:
        return not any(letter in self.subject for letter in "$`")

    def decide(self) -> None:
        """Begin the branch behind the patterns."""
        matches = not self.is_decided or any(
            fnmatch.fnmatchcase(self.subject, pattern) for pattern in self.patterns
        )
        self.live = matches and not self.is_taken
        self.is_taken = self.is_taken or matches
        self.in_pattern = False


class Branches:
    """The branches that a place in a script is in."""

    def __init__(self) -> None:
        self._open: list[_If | _Case] = []
        self.assumed: dict[str, str] = {}
        """Assumptions: subject of each -> how it was taken, in order."""

    @property
    def is_live(self) -> bool:
        """Whether commands count here."""
        return all(frame.live is not False for frame in self._open)

    def note_change(self) -> None:
        """Note that a command here sets a variable, which only a shell could decide in some branches."""
        for frame in self._open:
            if isinstance(frame, _If) and frame.live is None:
                what = f"line {frame.line}: if {' '.join(frame.shown)}"
                self.assumed[what] = "only a shell could decide it, so what it sets counts"

    def commands(self, words: list[str], ended_by: str, line: int) -> list[str]:
        """Return the words of a command that counts; none for a test, and in a branch that is not taken.

        Args:
            ended_by: what stands behind the command: a newline, ``;``, ``;;``, ``&&``, ``||``, ``|`` or a bracket.
            line: line of the command.
        """
        words = self.behind_keywords(words, line)
        top = self._open[-1] if self._open else None
        if isinstance(top, _Case) and top.in_pattern:
            self._read_patterns(top, words, ended_by)
            return []
        is_live = self.is_live
        if isinstance(top, _If) and top.in_condition and words:
            top.shown += words
            top.joints.append(ended_by)
            top.verdicts.append(holds(words) if is_test(words) else None)
            is_live = is_live and not is_test(words)
        if ended_by == ";;" and isinstance(top, _Case):
            top.in_pattern, top.patterns, top.live = True, [], False
        return words if is_live else []

    def behind_keywords(self, words: list[str], line: int) -> list[str]:
        """Return the words behind those that begin or end a branch."""
        while words:
            top = self._open[-1] if self._open else None
            if words[0] == "if" and not (isinstance(top, _Case) and top.in_pattern):
                self._open.append(_If(line))
            elif words[0] == "case" and words[2:3] == ["in"]:
                self._open.append(_Case(line, words[1]))
                words = words[2:]
            elif isinstance(top, _Case) and words[0] == "esac":
                self._open.pop()
            elif not isinstance(top, _If) or words[0] not in ("then", "elif", "else", "fi"):
                return words
            elif words[0] == "then":
                top.decide()
            elif words[0] == "elif":
                top.in_condition, top.live = True, True
            elif words[0] == "else":
                top.begin_else()
            else:
                self._open.pop()
            words = words[1:]
        return words

    def _read_patterns(self, frame: _Case, words: list[str], ended_by: str) -> None:
        frame.patterns += words
        if ended_by == ")" and frame.patterns:
            frame.decide()
            if not frame.is_decided and frame.live:
                what = f"line {frame.line}: case {frame.subject}"
                first = " | ".join(frame.patterns)
                self.assumed[what] = (
                    f"only a shell could decide it; its first branch, {first}, is taken"
                )
