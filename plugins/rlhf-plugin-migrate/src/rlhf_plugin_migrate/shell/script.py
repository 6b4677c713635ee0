"""Commands of a shell script, as bash would split them into words. No command is run and no file is read.

The part of the language that launch scripts use is understood: quotes, line continuations, comments, variables, arrays,
here-documents of ``read``, ``bash -c``, and three substitutions that tell a place (``dirname "$0"``, ``pwd``,
``cd X && pwd``). Conditions are decided where their words are known (``branches``); loops are not run: their commands
count once. Anything else that only a shell could work out, such as ``$(date)``, stays in the word as it is written, and
is reported.

bashlex is under the GPL, and parses 8 of the 12 scripts of our tests (docs/measurements.md).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rlhf_core import ConfigError

from .arithmetic import computed
from .branches import Branches
from .cursor import TextCursor

_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_ASSIGNMENT = re.compile(rf"({_NAME})(\+?)=(.*)", re.DOTALL)
_BRACED = re.compile(rf"({_NAME})(?:\[[@*]\])?(?:(:?)([-=])(.*))?", re.DOTALL)
_PROBE = re.compile(r".+&&\s*echo\s+([\w.-]+)\s*\|\|\s*echo\s+([\w.-]+)", re.DOTALL)
"""A probe of the machine: what a script takes if a command works, and else."""
_ALL_WORDS = re.compile(rf"\{{{_NAME}\[@\]\}}")
_DECLARES = {"export", "readonly", "local", "declare", "typeset"}
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "\\": "\\", "'": "'", '"': '"'}
_CD_PWD = re.compile(r"cd\s+(\S+)\s*(?:&&|;)\s*pwd(?:\s+-P)?")
_SHELLS = {"bash", "sh", "zsh"}
_MAX_DEPTH = 8


@dataclass(frozen=True, slots=True)
class ShellCommand:
    """One simple command."""

    words: tuple[str, ...]
    """Words after quoting and expansion; assignments before the command are not among them."""
    line: int
    """Line of the script on which the command begins."""
    environment: tuple[str, ...] = ()
    """Assignments before the command, such as ``CUDA_VISIBLE_DEVICES=0``."""
    unresolved: tuple[str, ...] = ()
    """Expansions that were left in the words, such as ``$HOME``."""
    assumed: tuple[tuple[str, str], ...] = ()
    """Assumptions in the script so far: subject of each, and how it was taken."""
    exported: tuple[str, ...] = ()
    """Names of the variables that the script has exported so far."""


@dataclass(slots=True)
class _Pending:
    """The command that is being read."""

    line: int = 1
    words: list[str] = field(default_factory=list)
    here: str | None = None


def commands(text: str, variables: Mapping[str, str], folder: Path) -> list[ShellCommand]:
    """Return the commands of a script in order, those of ``bash -c`` in place of it.

    Args:
        variables: values of variables, whatever the script assigns to them.
        folder: folder of the script, for ``dirname "$0"``.

    Raises:
        ConfigError: a quote, bracket or here-document does not end.
    """
    values = {"PWD": [os.getcwd()]} | {name: [value] for name, value in variables.items()}
    return list(_Reader(text, _Shell(values, folder, given=frozenset(variables))).read())


@dataclass(slots=True)
class _Shell:
    """State that all commands of a script share, those within commands included."""

    variables: dict[str, list[str]]
    folder: Path
    given: frozenset[str]
    """Names of variables that keep the value which they have before the first line."""
    exported: dict[str, None] = field(default_factory=dict)
    unresolved: dict[str, None] = field(default_factory=dict)
    """Expansions that were left as they are written, in order."""
    assumed: dict[str, str] = field(default_factory=dict)
    """Probes of the machine -> what is assumed of them."""


class _Reader:
    """One pass over a text, in which assignments take effect as they are met."""

    def __init__(self, text: str, shell: _Shell, *, depth: int = 0, line: int = 1) -> None:
        self.cursor = TextCursor(text, line)
        self.branches = Branches()
        self.shell = shell
        self.variables = shell.variables
        self.depth = depth
        self.word: str | None = None
        self.command = _Pending(line=line)
        self.documents: list[tuple[str, bool]] = []

    def read(self) -> Iterator[ShellCommand]:
        while not self.cursor.is_at_end():
            character = self.cursor.next()
            if character == "\n":
                self._end_word()
                self._read_documents()
                yield from self._end_command("\n")
            elif character in " \t":
                self._end_word()
            elif character in ";|&()":
                yield from self._separate(character)
            elif character in "<>":
                self._redirect(character)
            elif character == "#" and self.word is None:
                self.cursor.skip_to_newline()
            else:
                self._part(character)
        self._end_word()
        yield from self._end_command("\n")

    def _separate(self, character: str) -> Iterator[ShellCommand]:
        if character == "(" and self.word is not None and self.word.endswith("="):
            self._array(self.word.rstrip("+="), appends=self.word.endswith("+="))
        elif character == "&" and self.cursor.peek() == ">":
            self._end_word()
            self._redirect(self.cursor.next())
        else:
            self._end_word()
            if character in ";|&" and self.cursor.peek() == character:
                character += self.cursor.next()
            yield from self._end_command(character)

    # Words.

    def _part(self, character: str) -> None:
        """Read one more part of the current word: an unquoted character, a quotation or an expansion."""
        if character == "\\":
            following = "\\" if self.cursor.is_at_end() else self.cursor.next()
            self._add("" if following == "\n" else following, begins=following != "\n")
        elif character == "'":
            self._add(self.cursor.until("'"))
        elif character == '"':
            self._quoted('"')
        elif character == "$" and self.cursor.peek() == "'":
            self.cursor.next()
            self._add(self._ansi())
        elif character == "$" or character == "`":
            self._add_split(self._expansion(character))
        else:
            self._add(character)

    def _quoted(self, end: str | None) -> None:
        """Read up to the closing ``end``, or to the end of the text: variables count, spaces and quotes do not."""
        is_alone, is_empty_array = self.word is None, False
        self._add("")
        while end is not None or not self.cursor.is_at_end():
            character = self.cursor.next()
            if character == end:
                if is_alone and is_empty_array and not self.word:
                    self.word = None  # All words of an array without any are no word.
                return
            if character == "\\" and self.cursor.peek() in f"$`\\\n{end or ''}":
                following = self.cursor.next()
                self._add("" if following == "\n" else following)
            elif character in "$`":
                separate = _ALL_WORDS.match(self.cursor.text, self.cursor.at) is not None
                values = self._expansion(character)
                is_empty_array = separate and not values
                self._add_quoted(values if separate else [" ".join(values)])
            else:
                self._add(character)

    def _add_quoted(self, values: list[str]) -> None:
        """Add the words of a quoted expansion: several for an array with ``@``."""
        for index, value in enumerate(values):
            if index:
                self._end_word()
            self._add(value)

    def _ansi(self) -> str:
        found = ""
        while (character := self.cursor.next()) != "'":
            if character == "\\":
                following = self.cursor.next()
                found += _ESCAPES.get(following, "\\" + following)
            else:
                found += character
        return found

    def _array(self, name: str, *, appends: bool) -> None:
        """Read ``NAME=( ... )``, in which newlines only separate words."""
        outer, self.word, self.command = self.command, None, _Pending(line=self.cursor.line)
        while (character := self.cursor.next()) != ")":
            if character in " \t\n":
                self._end_word()
            elif character == "#" and self.word is None:
                self.cursor.skip_to_newline()
            else:
                self._part(character)
        self._end_word()
        before = self.variables.get(name, []) if appends else []
        words, self.command = self.command.words, outer
        self._assign_if_live(name, [*before, *words])

    # Expansions.

    def _expansion(self, character: str) -> list[str]:
        """Return the values of the expansion that ``$`` or a backquote begins."""
        if character == "`":
            return [self._substituted(self.cursor.until("`"), "`")]
        if self.cursor.peek() == "(":
            self.cursor.next()
            return [self._substituted(self.cursor.balanced("(", ")"), "$(")]
        if self.cursor.peek() == "{":
            self.cursor.next()
            return self._braced(self.cursor.balanced("{", "}"))
        found = re.compile(rf"{_NAME}|[0-9@*#?$!-]").match(self.cursor.text, self.cursor.at)
        if found is None:
            return ["$"]
        self.cursor.at = found.end()
        return self._variable(found[0], f"${found[0]}")

    def _braced(self, inside: str) -> list[str]:
        written = f"${{{inside}}}"
        found = _BRACED.fullmatch(inside)
        if found is None:
            return self._variable(inside, written)
        name, default, known = found[1], found[4], self.variables.get(found[1])
        if default is not None and (known is None or (found[2] and not "".join(known))):
            words = next(self._inner(f": {default}"), None)
            values = list(words.words[1:]) if words else [""]
            if found[3] == "=":
                self._assign_if_live(name, values)
            return values
        return self._variable(name, written)

    def _variable(self, name: str, written: str) -> list[str]:
        if name in self.variables:
            return self.variables[name]
        if name == "0":
            return [str(self.shell.folder / "script.sh")]
        return [self._keep(written)]

    def _substituted(self, inside: str, opening: str) -> str:
        """Return what a substitution prints, if that is known without running it: the place of the script."""
        if opening == "$(" and inside[:1] == "(" and inside[-1:] == ")":
            number = computed(inside[1:-1], self.variables)
            return self._keep(f"$({inside})") if number is None else str(number)
        if probe := _PROBE.fullmatch(inside.strip()):
            self.shell.assumed[f"$({inside})"] = f"the machine is not probed: {probe[2]} is taken"
            return probe[2]
        words = next((inner.words for inner in self._inner(inside.strip())), ())
        if words == ("pwd",):
            return os.getcwd()
        known = len(words) == 2 and "$" not in words[1]
        if known and words[0] == "dirname":
            return os.path.dirname(words[1])
        if known and _CD_PWD.fullmatch(inside.strip()):
            return os.path.normpath(os.path.join(os.getcwd(), words[1]))
        return self._keep(f"{opening}{inside}{'`' if opening == '`' else ')'}")

    def _keep(self, written: str) -> str:
        self.shell.unresolved[written] = None
        return written

    def _inner(self, text: str) -> Iterator[ShellCommand]:
        if self.depth == _MAX_DEPTH:
            raise ConfigError(
                f"line {self.cursor.line}: commands within commands, deeper than {_MAX_DEPTH}",
                code="migrate/nested-commands",
            )
        return _Reader(text, self.shell, depth=self.depth + 1, line=self.command.line).read()

    # Commands.

    def _end_word(self) -> None:
        if self.word is not None:
            if not self.command.words:
                self.command.line = self.cursor.began = self.cursor.line
            self.command.words.append(self.word)
        self.word = None

    def _end_command(self, ended_by: str) -> Iterator[ShellCommand]:
        done, self.command = self.command, _Pending(line=self.cursor.line)
        words = self.branches.commands(done.words, ended_by, done.line)
        assigned: list[str] = []
        if declares := bool(words) and words[0] in _DECLARES:
            by, words = words[0], [word for word in words[1:] if not word.startswith("-")]
            if by == "export":
                self.shell.exported |= dict.fromkeys(word.partition("=")[0] for word in words)
        while words and (found := _ASSIGNMENT.fullmatch(words[0])):
            assigned.append(words[0])
            before = "".join(self.variables.get(found[1], [])) if found[2] else ""
            self._assign(found[1], [before + found[3]])
            words = words[1:]
        if not words or declares:
            return
        if words[0] == "read" and done.here is not None:
            self._assign(words[-1], [done.here])
        inner = self._script_of(words)
        if inner is not None:
            yield from self._inner(inner)
        else:
            left = (part for part in self.shell.unresolved if any(part in word for word in words))
            assumed = tuple((self.shell.assumed | self.branches.assumed).items())
            every, own = tuple(self.shell.exported), tuple(assigned)
            yield ShellCommand(tuple(words), done.line, own, tuple(left), assumed, every)

    def _assign_if_live(self, name: str, words: list[str]) -> None:
        self.command.words = self.branches.behind_keywords(self.command.words, self.cursor.line)
        if self.branches.is_live:
            self._assign(name, words)

    def _assign(self, name: str, words: list[str]) -> None:
        self.branches.note_change()
        if name not in self.shell.given:
            self.variables[name] = words

    @staticmethod
    def _script_of(words: list[str]) -> str | None:
        """Return the text that ``bash -c TEXT`` runs, wherever in the words a shell is called."""
        for index, word in enumerate(words[:-2]):
            if os.path.basename(word) in _SHELLS and words[index + 1] in ("-c", "-lc", "-ic"):
                return words[index + 2]
        return None

    # Redirections and here-documents.

    def _redirect(self, character: str) -> None:
        """Leave out a redirection with its target; note a here-document, whose text begins on the next line."""
        if self.word is not None and self.word.isdigit():
            self.word = None
        self._end_word()
        if character == "<" and self.cursor.peek() == "<":
            self.cursor.next()
            if self.cursor.peek() == "-":
                self.cursor.next()
            mark = self._target()
            self.documents.append((mark.strip("'\"\\"), mark[:1] not in "'\"\\"))
            return
        while self.cursor.peek() in (">", "&", "|"):
            self.cursor.next()
        self._target()

    def _target(self) -> str:
        pattern = re.compile(r"[ \t]*((?:\$\{[^}]*\}|\"[^\"]*\"|'[^']*'|[^\s;&|<>()])*)")
        found = pattern.match(self.cursor.text, self.cursor.at)
        assert found is not None, "every part of the expression may be empty"
        self.cursor.at = found.end()
        return found[1]

    def _read_documents(self) -> None:
        for mark, expands in self.documents:
            lines: list[str] = []
            while True:
                if (line := self.cursor.line_of_text()) is None:
                    problem = f"expected a line {mark!r} at the end of <<{mark}"
                    where = f"line {self.command.line}"
                    raise ConfigError(f"{where}: {problem}", code="migrate/open-here-document")
                if line.strip() == mark:
                    break
                lines.append(line)
            # ``read`` leaves white space at both ends out.
            text = "".join(f"{line}\n" for line in lines)
            self.command.here = (self._expanded(text) if expands else text).strip()
        self.documents.clear()

    def _expanded(self, text: str) -> str:
        inner = _Reader(text, self.shell, depth=self.depth + 1, line=self.cursor.line)
        inner._quoted(None)
        return inner.word or ""

    def _add(self, text: str, *, begins: bool = True) -> None:
        if begins or self.word is not None:
            self.word = (self.word or "") + text

    def _add_split(self, values: list[str]) -> None:
        """Add an unquoted expansion, which bash splits into words at white space, but not in an assignment."""
        text, before = " ".join(values), self.command.words
        assigns = not before or before[0] in _DECLARES
        if assigns and self.word and _ASSIGNMENT.fullmatch(self.word):
            self._add(text)
            return
        if text[:1].isspace():
            self._end_word()
        # What only a shell could work out is one part of a word, whatever is in it.
        kept = "|".join(re.escape(part) for part in self.shell.unresolved if part in text)
        for index, part in enumerate(re.findall(rf"(?:{kept}{kept and '|'}\S)+", text)):
            if index:
                self._end_word()
            self._add(part)
        if text[-1:].isspace():
            self._end_word()
