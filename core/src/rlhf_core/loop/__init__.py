"""The run: put together, stepped, evaluated, interrupted, resumed.

The trainer is one page here. What a step is made of stands in ``rlhf_core.rollouts`` and ``rlhf_core.learning``, and
what it leaves on disk in ``rlhf_core.durable``.
"""
