"""What was allocated at the peak, out of a snapshot of torch's recorded history of a GPU's memory: bytes by the line of
the project that asked for them.

A snapshot knows the blocks that are allocated at its moment, each with the stack that asked for it, and the events
before it, of which a ring keeps the newest. The peak is found by going through them forwards; a block counts until its
free is requested, as ``torch.cuda.max_memory_allocated`` counts it. The sizes are those that were asked for, which
torch rounds up to 512 bytes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

PROJECT = "/rlhf_"
"""A part of the paths of all packages of the project."""
UNSEEN = "allocated before the first event that was kept"
OF_TORCH = "/site-packages/torch/"
Frames = Sequence[Mapping[str, Any]]
"""A stack, innermost first: ``filename``, ``line`` and ``name`` each."""


class Held(NamedTuple):
    """What one place had allocated at the peak."""

    place: str
    num_bytes: int
    blocks: int


def held_at_peak(snapshot: Mapping[str, Any], device: int = 0) -> list[Held]:
    """Return what was allocated at the highest moment of the kept events, the largest place first; what was freed
    without an event of its allocation, and the blocks without a stack, are places too."""
    events = [
        event
        for event in snapshot["device_traces"][device]
        if event["action"] in ("alloc", "free_requested")
    ]
    live = _before(events, snapshot, device)
    total = peak = sum(size for size, _ in live.values())
    at_peak = 0
    for number, event in enumerate(events, 1):
        total += event["size"] if event["action"] == "alloc" else -event["size"]
        if total > peak:
            peak, at_peak = total, number
    for event in events[:at_peak]:
        if event["action"] == "alloc":
            live[event["addr"]] = (event["size"], place_of(event.get("frames", ())))
        else:
            live.pop(event["addr"], None)
    return _summed(live.values())


def _before(
    events: Sequence[Mapping[str, Any]], snapshot: Mapping[str, Any], device: int
) -> dict[int, tuple[int, str]]:
    """Return size and place of each block, by address, that was allocated before the first of ``events``."""
    made: set[int] = set()
    live: dict[int, tuple[int, str]] = {}
    for event in events:
        if event["action"] == "alloc":
            made.add(event["addr"])
        elif event["addr"] not in made:
            live[event["addr"]] = (event["size"], UNSEEN)
            made.add(event["addr"])
    for segment in snapshot["segments"]:
        if segment["device"] != device:
            continue
        for block in segment["blocks"]:
            if block["state"] == "active_allocated" and block["address"] not in made:
                size = block.get("requested_size", block["size"])
                live[block["address"]] = (size, place_of(block.get("frames", ())))
    return live


def place_of(frames: Frames) -> str:
    """Return the project's innermost line in a stack, and behind ``<`` the innermost line that is not torch's own."""
    ours = next((_line(frame) for frame in frames if PROJECT in frame["filename"]), None)
    inner = next((_line(frame) for frame in frames if OF_TORCH not in frame["filename"]), None)
    if inner in (None, ours):
        return ours or "no line of Python: the backward pass's own thread"
    return f"{ours or 'no line of the project'} < {inner}"


def table(held: Sequence[Held], lines: int = 25) -> str:
    """Return the largest places as text, one a line, the others together in one more."""
    total = sum(each.num_bytes for each in held)
    shown = [f"{'GiB':>8}{'blocks':>8}  of {total / 2**30:.2f} GiB at the peak"]
    shown += [
        f"{each.num_bytes / 2**30:8.2f}{each.blocks:8}  {each.place}" for each in held[:lines]
    ]
    rest = held[lines:]
    if rest:
        size = sum(each.num_bytes for each in rest) / 2**30
        blocks = sum(each.blocks for each in rest)
        shown.append(f"{size:8.2f}{blocks:8}  {len(rest)} further places")
    return "\n".join(shown)


def _summed(blocks: Iterable[tuple[int, str]]) -> list[Held]:
    sizes: dict[str, int] = defaultdict(int)
    counts: dict[str, int] = defaultdict(int)
    for size, place in blocks:
        sizes[place] += size
        counts[place] += 1
    held = [Held(place, size, counts[place]) for place, size in sizes.items()]
    return sorted(held, key=lambda each: each.num_bytes, reverse=True)


def _line(frame: Mapping[str, Any]) -> str:
    return f"{Path(frame['filename']).name}:{frame['line']} {frame['name']}"
