"""Write the rows of a shop's desk: letters with the replies that they got, pairs of replies, and letters alone.

    python examples/shop_desk/prepare.py

Replies are of uneven quality, as those of a desk with many hands: each of the five things that a reply should have
(``rules.py``) is there in seven of ten. Of two replies the one with more of them is preferred, except in one pair of
twenty. Held-out letters have customers and orders of their own. It downloads nothing. The same flags write the same
files.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rules import CLOSING, REMEDIES, kept

NAMES = ["Ana", "Ben", "Cem", "Dua", "Eli", "Finn", "Gita", "Ida", "Jon", "Kai", "Lea", "Mia"]
HELD_OUT_NAMES = ["Aldo", "Bea", "Cleo", "Dora", "Emil", "Flora", "Greta", "Hugo"]
LAMPS = ["desk lamp", "floor lamp", "reading light", "wall light", "lantern", "night light"]
LETTERS = {
    "broken": (
        "the {lamp} came with a broken shade.",
        "my {lamp} does not turn on. I tried two sockets.",
        "glass everywhere! The {lamp} was in pieces when I opened the box.",
        "the switch of the {lamp} fell off after a day.",
    ),
    "late": (
        "I still wait for my {lamp}. It should have been here last week.",
        "where is my {lamp}? Ten days and nothing.",
        "the {lamp} was a birthday present, and the birthday is over. It never came in time.",
        "your tracking page has not moved for a week. When does the {lamp} come?",
    ),
    "wrong": (
        "I ordered a {lamp} and got a toaster.",
        "this is not the {lamp} from the picture. It has another color.",
        "somebody else's parcel is here, in place of my {lamp}.",
        "the box says {lamp}, and inside is a box of bulbs.",
    ),
    "return": (
        "I would like to send the {lamp} back, it does not suit the room.",
        "can I return the {lamp}? It is new, I never unpacked it.",
        "I changed my mind about the {lamp}.",
        "we were given two, so one {lamp} has to go back.",
    ),
}
"""What a customer writes, by what it is about."""
FILLER = (
    "We have been selling lamps for many years and take great pride in each one that leaves our house. Every lamp is "
    "looked at twice, packed by hand and carried to the post by people who love light as much as you do. Please do "
    "look at our new collection on the web page, where you will also find our opening hours and the story of our "
    "workshop."
)
SHARE_KEPT, SHARE_MISJUDGED = 0.7, 0.05


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the rows of a shop's desk.")
    parser.add_argument(
        "--output", type=Path, default=Path(__file__).parent / "data", help="folder for the files"
    )
    parser.add_argument("--replies", type=int, default=400, help="letters with a reply")
    parser.add_argument("--pairs", type=int, default=1600, help="letters with two replies")
    parser.add_argument("--letters", type=int, default=1024, help="letters without a reply")
    parser.add_argument("--held-out", type=int, default=200, help="letters to evaluate on")
    arguments = parser.parse_args()
    folder: Path = arguments.output
    folder.mkdir(parents=True, exist_ok=True)
    draw = random.Random(0)
    write(folder / "replies.jsonl", (replied(draw) for _ in range(arguments.replies)))
    write(folder / "pairs.jsonl", (judged(draw, NAMES) for _ in range(arguments.pairs)))
    write(folder / "letters.jsonl", (letter(draw, NAMES) for _ in range(arguments.letters)))
    held_out = range(arguments.held_out)
    write(folder / "held_out_pairs.jsonl", (judged(draw, HELD_OUT_NAMES) for _ in held_out))
    write(folder / "held_out.jsonl", (letter(draw, HELD_OUT_NAMES) for _ in held_out))


def letter(draw: random.Random, names: list[str]) -> dict[str, Any]:
    """Return a letter as a chat of one message, with what its reply has to know."""
    about = draw.choice(sorted(LETTERS))
    name, order = draw.choice(names), str(draw.randrange(10_000, 100_000))
    text = draw.choice(LETTERS[about]).format(lamp=draw.choice(LAMPS))
    content = f"Hello, {text} My order is {order}. {name}"
    return {
        "messages": [{"role": "user", "content": content}],
        "name": name,
        "order": order,
        "about": about,
    }


def reply(row: dict[str, Any], draw: random.Random) -> str:
    """Return a reply that has each of the five things with a probability of ``SHARE_KEPT``."""
    greets, names_order, is_right, is_short, closes = (draw.random() < SHARE_KEPT for _ in range(5))
    about = row["about"] if is_right else draw.choice(sorted(set(REMEDIES) - {row["about"]}))
    order = f" (order {row['order']})" if names_order else ""
    lines = [
        f"Dear {row['name']}," if greets else "Hello,",
        f"thank you for your letter{order}. We are sorry. {REMEDIES[about]}",
        *(() if is_short else (FILLER,)),
        CLOSING if closes else "Bye",
    ]
    return "\n\n".join(lines)


def replied(draw: random.Random) -> dict[str, Any]:
    """Return a letter and the reply that it got, as one chat."""
    row = letter(draw, NAMES)
    return {"messages": [*row["messages"], {"role": "assistant", "content": reply(row, draw)}]}


def judged(draw: random.Random, names: list[str]) -> dict[str, Any]:
    """Return a letter with two replies, the preferred one first, but for one of twenty."""
    while True:
        row = letter(draw, names)
        better, worse = (reply(row, draw) for _ in range(2))
        more, fewer = (sum(kept(text, row).values()) for text in (better, worse))
        if more != fewer:
            break
    if (more < fewer) != (draw.random() < SHARE_MISJUDGED):
        better, worse = worse, better
    return {"prompt": row["messages"], "chosen": better, "rejected": worse}


def write(file: Path, rows: Iterator[dict[str, Any]]) -> None:
    lines = [json.dumps(row) + "\n" for row in rows]
    file.write_text("".join(lines), encoding="utf-8")
    print(f"{file}: {len(lines)} rows")


if __name__ == "__main__":
    main()
