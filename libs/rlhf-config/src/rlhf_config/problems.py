"""Error messages about a configuration, in the words that the user typed."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from rlhf_core.errors import ConfigError

from .flags import FORMER_NAMES, SHORT_NAMES
from .layers import Layer
from .names_elsewhere import paths_here

_SHORT = {path: short for short, path in SHORT_NAMES.items()}

_EXPECTED = {
    "int_parsing": "a whole number",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_parsing": "a number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_parsing": "true or false",
    "bool_type": "true or false",
    "string_type": "text",
    "greater_than": "a value above {gt:g}",
    "greater_than_equal": "at least {ge:g}",
    "less_than": "a value below {lt:g}",
    "less_than_equal": "at most {le:g}",
    "literal_error": "{expected}",
    "string_too_short": "at least {min_length} character(s)",
    "missing": "more values",
    "too_short": "at least {min_length} value(s)",
    "too_long": "at most {max_length} value(s)",
}
"""pydantic's error types -> what was expected, filled in with the error's context."""
_RANGES = frozenset(
    {
        *("finite_number", "greater_than", "greater_than_equal", "less_than", "less_than_equal"),
        *("literal_error", "string_too_short", "missing", "too_short", "too_long"),
    }
)
"""pydantic's error types about a value that is of the option's type."""


def flag(path: str) -> str:
    """Return the flag of an option: ``--`` and its short name, or its path where it has none."""
    return f"--{_SHORT.get(path, path)}"


def missing(flag: str, expected: str, advice: str, *, emptied: str | None) -> str:
    """Return the problem of an option that the run needs.

    Args:
        emptied: the option as the user wrote it, with an empty list; None: nobody wrote it.
    """
    if emptied is None:
        return f"{flag}: {expected}; got neither.\n  {advice}"
    return f"{emptied}: {expected}; got an empty list.\n  {advice}"


class Labels:
    """Names options as the user wrote them: the flag as typed, or ``file.toml: key``."""

    def __init__(self, tree: Layer) -> None:
        self._tree = tree

    def __call__(self, path: str) -> str:
        """Name an option; one that nobody wrote is named by its flag."""
        origin = self._tree.origins.get(path)
        return origin.label if origin else flag(path)

    def is_set(self, path: str) -> bool:
        """True when some layer wrote the option."""
        return path in self._tree.origins

    def is_typed(self, path: str) -> bool:
        """True when the option was given on the command line."""
        origin = self._tree.origins.get(path)
        return origin is not None and origin.typed

    def typed_below(self, section: str) -> list[str]:
        """Return the options of a section, its components' too, that were given on the command line."""
        return [
            path
            for path in self._tree.origins
            if path.startswith(f"{section}.") and self.is_typed(path)
        ]

    def is_default(self, path: str) -> bool:
        """True when the option stands in the defaults of the command alone."""
        origin = self._tree.origins.get(path)
        return origin is not None and origin.is_default


class Report:
    """Problems in the order in which they were found; one message gives the first in full and names the others."""

    def __init__(self) -> None:
        self._problems: list[tuple[str, str, str, str]] = []

    def __bool__(self) -> bool:
        return bool(self._problems)

    def add(self, label: str, text: str, owner: str = "", *, code: str) -> None:
        """Note a problem with the option ``label`` of component ``owner``. Only an option's first problem counts."""
        if all(label != known for known, *_ in self._problems):
            self._problems.append((label, text, owner, code))

    def raise_if_any(self) -> None:
        """Raise all noted problems as one error.

        Raises:
            ConfigError: a problem was noted.
        """
        if not self._problems:
            return
        (label, text, owner, code), *others = self._problems
        lines = [f"{label}: {text}"]
        if owner:
            lines.append(f"  option of {owner}")
        if others:
            names = [other for other, *_ in others]
            more = f" and {len(names) - 4} more" if len(names) > 4 else ""
            lines.append(f"  also wrong: {', '.join(names[:4])}{more}")
        raise ConfigError("\n".join(lines), code=code)


def code_of(error: Mapping[str, Any]) -> str:
    """Return the code of one of pydantic's errors about an option's value."""
    kind: str = error["type"]
    if kind in ("value_error", "assertion_error"):
        raised = error.get("ctx", {}).get("error")
        return raised.code if isinstance(raised, ConfigError) else "config/invalid"
    return "config/out-of-range" if kind in _RANGES else "config/wrong-type"


def explain(error: Mapping[str, Any], value: Any) -> str:
    """Return ``expected ..., got ...`` for one of pydantic's errors and the value as it was written."""
    kind, context = error["type"], error.get("ctx", {})
    if kind in ("value_error", "assertion_error"):
        return str(context.get("error", error["msg"]))
    expected = _EXPECTED.get(kind)
    wanted = (
        f"expected {expected.format(**context)}"
        if expected
        else str(error["msg"]).replace("Input should be", "expected", 1)
    )
    return f"{wanted}, got {show(value)}{_near_choice(kind, context, value)}"


def with_article(noun: str) -> str:
    """Return the noun with its article: ``an estimator``, ``a loss``."""
    return f"{'an' if noun[0].lower() in 'aeiou' else 'a'} {noun}"


def show(value: Any) -> str:
    """Return a value as messages show it, at most 80 characters long."""
    if isinstance(value, list | tuple):
        text = repr(value[0]) if len(value) == 1 else ", ".join(map(repr, value))
    else:
        text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def unknown_option(label: str, path: str, known: Iterable[str], command: str) -> str:
    """Return the message about an option that does not exist, with the nearest ones that do.

    An option with the same last word elsewhere in the tree (``--lr``) counts as near, and so does one that another
    framework calls so.
    """
    candidates = sorted(known)
    wanted = path.replace("-", "_")
    leaf = wanted.rpartition(".")[2]
    if now := FORMER_NAMES.get(wanted):
        return f"that option is now {flag(now) if label.startswith('--') else now}"
    # Options of one section are alike by its name, so their own words have to be alike too.
    alike = [
        option
        for option in candidates
        if difflib.SequenceMatcher(None, leaf, option.rpartition(".")[2]).ratio() >= 0.5
    ]
    near = difflib.get_close_matches(wanted, alike, n=1, cutoff=0.8)
    near = near or [option for option in candidates if option.rpartition(".")[2] == leaf][:3]
    near = near or paths_here(wanted, candidates)
    near = near or difflib.get_close_matches(wanted, [*alike, *SHORT_NAMES], n=1, cutoff=0.7)
    near = near or _near_leaf(wanted, leaf, candidates)
    if not near:
        return f"there is no such option in this run. All of them: rlhf {command} --help"
    names = [flag(SHORT_NAMES.get(option, option)) for option in near]
    if not label.startswith("--"):
        names = [SHORT_NAMES.get(option, option) for option in near]
    return f"there is no such option. Did you mean {' or '.join(names)}?"


def _near_leaf(wanted: str, leaf: str, candidates: list[str]) -> list[str]:
    by_leaf: dict[str, list[str]] = {}
    for option in candidates:
        by_leaf.setdefault(option.rpartition(".")[2], []).append(option)
    found = difflib.get_close_matches(leaf, by_leaf, n=1, cutoff=0.75)
    if not found:
        return []
    return difflib.get_close_matches(wanted, by_leaf[found[0]], n=1, cutoff=0.0)


def _near_choice(kind: str, context: Mapping[str, Any], value: Any) -> str:
    if kind != "literal_error":
        return ""
    word = value[0] if isinstance(value, tuple) and value else value
    choices = str(context.get("expected", "")).replace(" or ", ", ").replace("'", "").split(", ")
    near = difflib.get_close_matches(str(word), choices, n=1)
    return f". Did you mean {near[0]!r}?" if near else ""
