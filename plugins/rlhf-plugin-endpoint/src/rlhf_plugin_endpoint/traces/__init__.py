"""Episodes as traces in the form of OpenEnv's ``TrainingTrace``, version 1 (``rlhf_episodes.traces``), and back:
``converting`` goes to and from graphs."""

from rlhf_episodes.traces import TrainingTrace as TrainingTrace
from rlhf_episodes.traces import TrainingTurn as TrainingTurn
from rlhf_episodes.traces import read_traces as read_traces
from rlhf_episodes.traces import write_traces as write_traces

from .converting import graph_from_trace as graph_from_trace
from .converting import trace_from_graph as trace_from_graph
