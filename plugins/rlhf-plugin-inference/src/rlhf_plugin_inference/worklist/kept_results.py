"""Words that an error in the middle of the work gets about the results that are there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rlhf_core import RewardError, RLHFError, RolloutError


@contextmanager
def results_are_kept(path: Path, items: str, going_on: str) -> Iterator[None]:
    """Add to an error of the body where the finished items are, and what goes on with them.

    Args:
        path: their file.
        items: what they are, in the plural.
        going_on: sentence that says how to go on, without a full stop.

    Raises:
        RewardError, RolloutError: as the body raised it, with the line in its message. Another exception but those of
            a wrong start gets the line as a note.
    """
    line = f"The {items} that were finished are in {path}; {going_on}."
    try:
        yield
    except (RewardError, RolloutError) as error:
        raise type(error)(f"{error}\n  {line}") from error
    except RLHFError:
        raise
    except Exception as error:
        if path.exists():
            error.add_note(line)
        raise
