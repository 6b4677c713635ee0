"""The run: put together, stepped, evaluated, interrupted, resumed.

``driver`` is the loop around any kind of run, ``course`` its contract with one kind, and ``training`` the kind of
``rlhf train``, whose trainer is one page. The parts of a step are in ``rlhf_core.rollouts`` and ``rlhf_core.learning``,
files on disk in ``rlhf_core.durable``.
"""
