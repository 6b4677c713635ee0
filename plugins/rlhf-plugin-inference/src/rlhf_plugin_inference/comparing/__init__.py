"""The command ``rlhf eval compare``: two evaluations of the same tasks, task by task.

``results`` reads a folder, ``pairing`` brings the tasks of two together, and ``report`` says how they differ.
"""
