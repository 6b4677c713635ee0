"""What a reply of the shop's desk should have, as a reward: the share of five things that it has."""

from __future__ import annotations

from collections.abc import Mapping

REMEDIES = {
    "broken": "A new one leaves our house today.",
    "late": "We pay the postage back to you.",
    "wrong": "Keep what you got, the right one is on its way.",
    "return": "A label for the way back is in your mail.",
}
"""What the shop does, by what a letter is about."""
CLOSING = "Kind regards,\nThe Lamp Desk"
WORDS = 60
"""Words of a reply, at most."""


def kept(text: str, row: Mapping[str, str]) -> dict[str, bool]:
    """Return by name which of the five things a reply to ``row`` has."""
    named = [about for about, remedy in REMEDIES.items() if remedy in text]
    return {
        "greets": text.startswith(f"Dear {row['name']},"),
        "names_order": row["order"] in text,
        "right_remedy": named == [row["about"]],
        "short": len(text.split()) <= WORDS,
        "closes": text.rstrip().endswith(CLOSING),
    }


def rules(response: str, name: str, order: str, about: str) -> dict[str, float]:
    """Return the share of the five, each of them, and whether all are there."""
    found = kept(response, {"name": name, "order": order, "about": about})
    return {
        "reward": sum(found.values()) / len(found),
        "all": float(all(found.values())),
        **{key: float(value) for key, value in found.items()},
    }
