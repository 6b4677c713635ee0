"""Advice that errors give: options that a message tells to set, to leave or to rename, and the words of who follows."""

import re
import shlex

_FLAG = r"--[a-z][\w.-]*\w"
_VERBS = (
    "[Ss]et(?: for example)?",
    "[Aa]dd(?: one with)?",
    *(
        "[Cc]hoose",
        "[Tt]ry",
        "[Ll]eave(?: out)?",
        "without",
        "[Uu]se",
        "[Gg]ive",
        "[Rr]aise",
        "[Nn]ame",
        "or",
        "by",
    ),
    # The means of something else that is told.
    "(?:[Cc]hoose|[Cc]ut|[Gg]ive|[Nn]ame|leave out|set|write|wait|begin) [^.;,]* with",
    "(?:[Rr]un|[Rr]esume|[Ss]tart over) with",
    "(?:[Ss]et|[Cc]hoose|[Uu]se) [^.;,:]*:",
)
ADVICE = re.compile(
    rf"\b(?:{'|'.join(_VERBS)}) (?P<flag>{_FLAG})"
    r"(?:(?: to)? (?!in place)(?P<value>''|[\w./:-]*\w))?"
    rf"(?: in place of (?P<instead>{_FLAG}))?"
)
LEAVE = re.compile(
    r"\b[Ll]eave (?:it|them|(?:the|that|this) (?:option|filter)|one(?: of (?:them|the two))?) out"
)
EXPECTED = re.compile(
    rf"(?P<flag>{_FLAG})(?: is [^;]*;|: | [^:;]*: )\s*expected "
    rf"(?:(?:at least|at most) (?:{_FLAG}(?: = |, which is ))?|a [a-z ]+: |a number from |one of |)"
    r"(?P<value>[\d.]*\d|[\w]+/[\w@/]+|[a-z]+:[A-Z]+|(?<=one of )[\w-]+)(?=[ ,]|$)"
)
"""What stands in place of a value that an option cannot have: a bound, or the first of a list."""
FOR_EXAMPLE = re.compile(rf"such as (?:(?P<flag>{_FLAG}) )?(?P<value>[a-z\d][\w/,-]*)")
NEAR = re.compile(rf"(?P<flag>{_FLAG}) [^:]*: [^\n]*Did you mean (?P<value>[a-z][\w/]*)")
BACK = re.compile(rf"(?P<flag>{_FLAG}) is \S+, but [^\n]* made with (?P<value>\S+)\. Set it back")
ROOM = re.compile(
    rf"(?:has|have|are) (?P<value>\d+) (?:tokens|bytes|images|pixels)[^;\n]*, (?P<flag>{_FLAG}) allows"
)
ANOTHER = re.compile(rf"another (?:(?P<flag>{_FLAG})|(?:file|folder|name)\b)")
TOO = re.compile(rf"expected (?P<flag>{_FLAG}) [A-Z]+ too")
STRAY = re.compile(
    r"'?(?P<word>[^\s':]+)'?: expected (?:an option|--section.option or a short name) such as "
    rf"(?P<flag>{_FLAG})"
)
OUTPUT = re.compile(
    r"(?:^|\s)(?P<word>[\w./-]+)(?::| is) [^\n]*(?P<what>(?:a run's|the) --output(?: of rlhf eval)?)"
)
"""A folder that is not what the command reads, and whose it should be."""
NOT_BOTH = re.compile(rf"(?P<one>{_FLAG}) and (?P<other>{_FLAG}): [^.]*, not both")
NO_EFFECT = re.compile(rf"(?P<flag>{_FLAG}) would change nothing")
SET_IT = re.compile(r"\b(?:[Ss]et|[Aa]dd|raise) it(?: to\b(?: (?P<value>\d+))?|[.,])")
RENAME = re.compile(rf"Did you mean (?P<flags>{_FLAG}(?:(?:, | or ){_FLAG})*)\?")
PLACEHOLDERS = {
    "FILE": "file.jsonl",
    "FILE.jsonl": "file.jsonl",
    "MODEL": "some/model",
    "NAME": None,
    "FOLDER": "folder",
    "X": None,
}
"""Words of messages that stand for something of the user's; None: what depends on the option."""
LEAVING = re.compile(r"(?:leave(?: out)?|without) --", re.IGNORECASE)
"""Beginning of advice not to give an option."""
_OTHER_WORDS = {
    "if",
    "to",
    "one",
    "too",
    "or",
    "and",
    "is",
    "in",
    "below",
    "above",
    "of",
    "out",
    "with",
    "as",
}
"""Words behind an option that are no value of it."""


def without(words, flag):
    """Leave a flag and its values out, also where its value is behind ``=``."""
    kept, leaving = [], False
    for word in words:
        if word.startswith("--"):
            leaving = word.partition("=")[0] == flag
        if not leaving:
            kept.append(word)
    return kept


def _is_of(word, flag):
    return word == flag or ("." in flag and word.startswith(f"{flag}."))


def changes(words, message, values):
    """Return each change that a message advises, see ``_told``; of an option without an effect alone, that it goes."""
    told = list(_told(words, message, values))
    if (
        not told
        and (found := NO_EFFECT.search(message))
        and not cannot_be_followed(message, values)
    ):
        told = [(found["flag"], without(words, found["flag"]))]
    return told


def _told(words, message, values):
    """Yield each change that a message advises: its flag, and the words of who follows it.

    Left out are those of which neither the message nor ``values`` says what to write.

    Args:
        values: flag -> what a user would write where a message leaves it open; None: there is nothing.
    """
    named = [(found.start(), found[0]) for found in re.finditer(_FLAG, message)]
    for found in ADVICE.finditer(message):
        flag, value = found["flag"], found["value"]
        rest = without(without(words, flag), found["instead"])
        if LEAVING.match(found[0]):
            yield flag, rest
            continue
        if value is None or value in _OTHER_WORDS or value in PLACEHOLDERS:
            value = values.get(flag, PLACEHOLDERS.get(value))
        if value is not None:
            yield flag, [*rest, flag, *shlex.split(value)]
    for found in LEAVE.finditer(message):
        before = [flag for at, flag in named if at < found.start()]
        typed = [word for word in words if any(_is_of(word, flag) for flag in before)]
        for flag in typed if " one" in found[0] else typed[:1]:
            yield flag, without(words, flag)
    for found in SET_IT.finditer(message):
        flag = [flag for at, flag in named if at < found.start()][-1]
        value = found["value"] or values.get(flag)
        if value is not None:
            yield flag, [*without(words, flag), flag, value]
    for found in EXPECTED.finditer(message):
        yield found["flag"], [*without(words, found["flag"]), found["flag"], found["value"]]
    for found in NOT_BOTH.finditer(message):
        for flag in (found["one"], found["other"]):
            yield flag, without(words, flag)
    for found in RENAME.finditer(message):
        for flag in re.findall(_FLAG, found["flags"]):
            yield flag, [flag if word == named[0][1] else word for word in words]
    yield from _values_told(words, message, values)
    yield from _other_words(words, message, values)


def _values_told(words, message, values):
    """Yield the changes to an option that is named with the wrong value or without one."""
    for form in (NEAR, BACK, ROOM):
        for found in form.finditer(message):
            yield found["flag"], [*without(words, found["flag"]), found["flag"], found["value"]]
    for found in (*FOR_EXAMPLE.finditer(message), *ANOTHER.finditer(message)):
        before = re.findall(_FLAG, message[: found.start()])
        flag = found["flag"] or (before[-1] if before else None)
        value = values.get(flag) if found.re is ANOTHER else found["value"]
        if flag and value and not OUTPUT.search(message):
            yield flag, [*without(words, flag), flag, value]
    for found in TOO.finditer(message):
        if (value := values.get(found["flag"])) is not None:
            yield found["flag"], [*words, found["flag"], value]


def _other_words(words, message, values):
    """Yield the changes to words that belong to no option."""
    for found in STRAY.finditer(message):
        flag, rest = found["flag"], [word for word in words if word != found["word"]]
        if flag in values:
            yield flag, [*without(rest, flag), flag, values[flag]]
    for found in OUTPUT.finditer(message):
        if (folder := values.get(found["what"])) is not None:
            yield found["what"], [folder if word == found["word"] else word for word in words]


def arrives(error_of, words, values, steps=4):
    """Return whether some advice, and those of the errors after it, lead to a run, or to what no message can say.

    Args:
        error_of: returns the message with which words end; None: with none.
    """
    message = error_of(words)
    if message is None or steps == 0:
        return message is None
    found = [then for _, then in changes(words, message, values) if then != words]
    return not found or any(arrives(error_of, then, values, steps - 1) for then in found)


def cannot_be_followed(message, values):
    """Return whether a message advises an option for which there is nothing here, as ``values`` says with None."""
    return any(
        found["flag"] in values and values[found["flag"]] is None
        for found in ADVICE.finditer(message)
    )


def remembered(error_of):
    """Return the function that tells the error of words, and asks once for the same words."""
    said = {}

    def error_of_once(words):
        key = tuple(words)
        if key not in said:
            said[key] = error_of(words)
        return said[key]

    return error_of_once


def require_progress(error_of, words, values):
    """Follow each advice of the error with which words end, and require that it helps.

    Returns the flags that were advised. A message in which no advice is found fails, unless it advises an option that
    ``values`` says there is nothing for. Words are tried once, although what follows them is looked at twice.
    """
    error_of = remembered(error_of)
    before = error_of(words)
    assert before is not None, words
    advised = []
    for flag, then in changes(words, before, values):
        after = error_of(then)
        assert after is None or after != before, then
        assert f"{flag} would change nothing" not in (after or ""), (then, before)
        assert "no such option" not in (after or "").lower(), (then, before)
        assert arrives(error_of, then, values), (then, before, after)
        advised.append(flag)
    assert advised or cannot_be_followed(before, values), (
        f"nothing that a message tells to do was found in: {before}"
    )
    return advised
