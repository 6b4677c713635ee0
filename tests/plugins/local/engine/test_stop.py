"""Stop strings in text that arrives token by token."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from rlhf_plugin_local.engine.stop import LONGEST_CHARACTER, StopWatcher

PIECES = {0: "hel", 1: "lo", 2: " w", 3: "orld", 4: ".", 5: "\n\n"}


def decode(ids: Sequence[int]) -> str:
    """Like SentencePiece: the first token of a text loses its leading space."""
    return "".join(PIECES[token] for token in ids).removeprefix(" ")


def first_hit(stop: tuple[str, ...], tokens: Sequence[int], decoder: object = decode) -> int | None:
    watcher = StopWatcher(decoder, stop)
    return next((i for i, token in enumerate(tokens) if watcher.push(token)), None)


@pytest.mark.parametrize(
    ("stop", "hit"),
    [
        (("hel",), 0),
        (("llo",), 1),  # begins in one token, ends in the next
        (("lo wor",), 3),  # spans three tokens
        (("hello world.",), 4),  # the whole text
        (("o w",), 2),  # the space survives though the new tokens alone would lose it
        (("lo\n",), None),
        (("\n",), 5),
        (("zzz", ".", "world"), 3),  # the first of several to appear
    ],
)
def test_a_stop_string_is_found_at_the_token_that_completes_it(stop, hit):
    assert first_hit(stop, [0, 1, 2, 3, 4, 5]) == hit


def test_the_text_of_tokens_long_ago_is_still_joined():
    watcher = StopWatcher(decode, ("x" * 3 + "hello",))
    for _ in range(100):
        assert not watcher.push(0)


def byte_decode(ids: Sequence[int]) -> str:
    return bytes(ids).decode("utf-8", errors="replace")


def test_a_character_of_several_tokens_is_found_when_it_is_complete():
    tokens = list("naïve → yes".encode())

    hit = first_hit(("→ y",), tokens, byte_decode)

    assert hit is not None
    assert byte_decode(tokens[: hit + 1]) == "naïve → y"


def test_bytes_that_never_become_a_character_do_not_pile_up():
    lengths = []

    def counting(ids: Sequence[int]) -> str:
        lengths.append(len(ids))
        return byte_decode(ids)

    watcher = StopWatcher(counting, ("never",))
    for _ in range(200):
        watcher.push(0x80)

    assert max(lengths) <= 2 * LONGEST_CHARACTER


@pytest.mark.parametrize(
    ("stop", "ignored", "hit"),
    [
        (("hel",), 1, None),  # complete within the first token
        (("lo",), 2, None),
        (("lo",), 1, 1),
        (("lo w",), 2, 2),  # begins in an ignored token and ends behind them
        (("lo", "world"), 2, 3),
        (("l",), 1, 1),  # one is ignored, the next one is not
    ],
)
def test_a_string_within_the_ignored_tokens_is_text_like_any_other(stop, ignored, hit):
    watcher = StopWatcher(decode, stop, ignored)

    hits = [place for place, token in enumerate([0, 1, 2, 3, 4, 5]) if watcher.push(token)]

    assert (hits[0] if hits else None) == hit


@pytest.mark.parametrize("stop", ["a\N{RIGHTWARDS ARROW}", "ya", "a"])
@pytest.mark.parametrize("ignored", range(9))
def test_ignored_bytes_of_a_character_count_where_it_is_complete(stop, ignored):
    tokens = list("ya\N{RIGHTWARDS ARROW}ya\N{RIGHTWARDS ARROW}ya".encode())
    watcher = StopWatcher(byte_decode, (stop,), ignored)

    hits = [place for place, token in enumerate(tokens) if watcher.push(token)]

    ends = [
        place
        for place in range(len(tokens))
        if byte_decode(tokens[: place + 1]).endswith(stop) and place >= ignored
    ]
    assert hits[0] == ends[0]


def test_it_stays_found():
    watcher = StopWatcher(decode, ("hel",))
    watcher.push(0)

    assert watcher.push(4)
    assert watcher.found


@pytest.mark.parametrize("stop", ["ab", "aab", "abab", "b" * 5])
def test_it_agrees_with_decoding_the_whole_text_each_time(stop):
    pieces = ["a", "b", "ab", "ba", "bb", "aab"]
    tokens = [(7 * i * i + 3 * i) % len(pieces) for i in range(60)]

    def join(ids: Sequence[int]) -> str:
        return "".join(pieces[token] for token in ids)

    expected = next((i for i in range(60) if stop in join(tokens[: i + 1])), None)
    assert first_hit((stop,), tokens, join) == expected
