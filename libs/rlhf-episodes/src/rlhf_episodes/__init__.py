"""The graph of an episode: requests to the policy as nodes that share what they read, and its paths as trajectories.

``graph`` is what executors fill. ``node`` is one request, ``strand`` the tokens of one path from its fork on, ``drift``
tells whether a later input holds an answer in other tokens, and ``segments`` makes trajectories of paths.
"""

from .graph import EpisodeGraph
from .paths import RequestNode

__all__ = ["EpisodeGraph", "RequestNode"]
