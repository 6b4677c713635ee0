"""Episodes as traces in the form of OpenEnv's ``TrainingTrace``, version 1 (``rlhf_episodes.traces``), and back:
``converting`` goes to and from graphs."""

from rlhf_episodes.traces import TrainingTrace, TrainingTurn, read_traces, write_traces

from .converting import graph_from_trace, trace_from_graph

__all__ = [
    "TrainingTrace",
    "TrainingTurn",
    "graph_from_trace",
    "read_traces",
    "trace_from_graph",
    "write_traces",
]
