"""From gradients to weights: float32 copies, clipping, schedule, optimizer, moving average, and the state in files.

The objective is ``rlhf_core.objective``: a backend computes its gradients and hands them over here.
"""
