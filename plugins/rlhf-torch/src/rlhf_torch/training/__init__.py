"""From gradients to weights: float32 copies, clipping, schedule, optimizer, moving average, and the state in files.

What is minimized is ``rlhf_core.objective``; a backend calls it and hands the gradients over here.
"""
