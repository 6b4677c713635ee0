"""Data that crosses contracts: tasks, trajectories and their columns, metrics.

A module here has types of plain values, with the functions that cut and join them. It loads no model, reads no file and
draws no random number. Plugins import these types from ``rlhf_core.contracts``.
"""
