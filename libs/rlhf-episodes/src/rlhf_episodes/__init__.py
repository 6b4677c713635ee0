"""The graph of an episode: requests to the policy as nodes that share what they read, and its paths as trajectories.

``graph`` is what executors fill, ``paths`` has its nodes and makes trajectories, and ``drift`` tells whether a later
input holds an answer in other tokens. ``answers`` is about one answer by itself; an episode of one needs no graph.
``guarded`` stands between whoever plays an episode and the user's environment.
"""

from .answers import single_answer
from .graph import EpisodeGraph
from .guarded import GuardedEnvironment
from .paths import RequestNode

__all__ = ["EpisodeGraph", "GuardedEnvironment", "RequestNode", "single_answer"]
