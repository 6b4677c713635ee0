"""The entrance of ``rlhf train``."""

from functools import partial

from .driver import drive
from .training import TRAINING

run = partial(drive, TRAINING)
"""Run a whole training and return how it ended: ``drive`` with its other arguments."""
