"""The run: put together, stepped, evaluated, interrupted, resumed.

``driver`` is the loop around any kind of run, ``run_kind`` its contract with one kind, and ``training`` the kind of
``rlhf train``, whose trainer is one page. The parts of a step are in ``rollouts`` and ``learning`` beside this
folder, files on disk in ``durable``.
"""
