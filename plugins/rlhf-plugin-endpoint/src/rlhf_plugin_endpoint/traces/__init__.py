"""Episodes as files in the form of OpenEnv's ``TrainingTrace``, version 1: a line of JSON for each episode.

``training_trace`` has the form and its checks, ``converting`` goes to and from graphs and trajectories, ``files`` reads
and writes.
"""

from .converting import graph_from_trace, trace_from_graph, trace_from_trajectories
from .files import read_traces, write_traces
from .training_trace import TrainingTrace, TrainingTurn

__all__ = [
    "TrainingTrace",
    "TrainingTurn",
    "graph_from_trace",
    "read_traces",
    "trace_from_graph",
    "trace_from_trajectories",
    "write_traces",
]
