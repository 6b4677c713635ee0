"""Training from Python: in a script, in a notebook, or in a thread of another program.

    import rlhf

    def score(response, answer):
        return float(response == answer)

    result = rlhf.train("run.toml", reward=score, data=rows, steps=100)
    tuned = rlhf.sft("sft.toml", data=conversations)

Options are those of ``rlhf train``, or of another command that trains: ``rlhf.sft``, ``rlhf.dpo`` and whatever else the
installed plugins have. Importing this package imports no torch.
"""

from rlhf_core import UnknownComponent

from .callbacks import DoneStep as DoneStep
from .entry import CallableCommand as CallableCommand
from .entry import command as command
from .entry import command_names
from .entry import describe as describe
from .entry import start as start
from .entry import train as train
from .result import TrainingResult as TrainingResult
from .run import Run as Run


def __getattr__(name: str) -> CallableCommand:
    """Return the command that trains of this name; ``command`` finds also those that are called like something here."""
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return command(name)
    except UnknownComponent as error:
        raise AttributeError(str(error)) from error


def __dir__() -> list[str]:
    return sorted({*globals(), *command_names()})
