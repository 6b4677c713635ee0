"""The run: put together, stepped, evaluated, interrupted, resumed.

The trainer is one page here. The parts of a step are in ``rlhf_core.rollouts`` and ``rlhf_core.learning``, its files
on disk in ``rlhf_core.durable``.
"""
