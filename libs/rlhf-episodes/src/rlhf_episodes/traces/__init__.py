"""Episodes as files in the form of OpenEnv's ``TrainingTrace``, version 1: a line of JSON for each episode.

``training_trace`` has the form and its checks, ``files`` reads and writes.
"""

from .files import read_traces, write_traces
from .training_trace import TrainingTrace, TrainingTurn

__all__ = ["TrainingTrace", "TrainingTurn", "read_traces", "write_traces"]
