"""A call that raises a message, and the same call as whoever follows the message makes it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Advised:
    """A call that raises, for each thing that its message tells to do."""

    call: Callable[..., object]
    """It is called in an empty folder; a coroutine that it returns is run."""
    wrong: Mapping[str, object]
    """Arguments with which it raises the message."""
    told: Mapping[str, Mapping[str, object]]
    """Words of the message -> the arguments that are others for who does what they tell, with which nothing is raised.
    Together the words have each option that the message names."""
    given: tuple[str, ...] = ()
    """Options that the message names as those that the user gave."""
    needs: str = ""
    """Package without which the call cannot be made."""
    slow: bool = False
    """It starts processes, or takes more than half a second otherwise."""
