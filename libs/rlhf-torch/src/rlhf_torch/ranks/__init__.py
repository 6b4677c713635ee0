"""Ranks that compute one update together: their process group, passes that all of them make alike, and its losses.

How they share weights and the state of training is in ``cut``.
"""
