"""Data that crosses contracts: tasks, trajectories and their columns, metrics.

A module here holds plain values and how they are cut and joined; it loads no model, reads no file and draws no random
number. Plugins import these types from ``rlhf_core.contracts``.
"""
