"""Training from Python: in a script, in a notebook, or in a thread of another program.

    import rlhf

    def score(response, answer):
        return float(response == answer)

    result = rlhf.train("run.toml", reward=score, data=rows, steps=100)

Options are those of ``rlhf train``. Importing this package imports no torch.
"""

from .callbacks import DoneStep
from .entry import describe, start, train
from .result import TrainingResult
from .run import Run

__all__ = ["DoneStep", "Run", "TrainingResult", "describe", "start", "train"]
