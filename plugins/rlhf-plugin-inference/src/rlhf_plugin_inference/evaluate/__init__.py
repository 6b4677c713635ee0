"""The command ``rlhf eval``: a model plays tasks, without training, and a summary says how well and how surely.

``run`` is the command's course, ``jobs`` the work in its order, ``playing`` one task, ``records`` the file of episodes,
``summary`` the numbers and ``table`` their print. What a task's episodes are depends on the options and on its place
alone.
"""
