"""Statistics of evaluations, as pure functions: estimates with confidence intervals, and two models on the same tasks.

The unit that varies is the task: episodes of one task resemble each other, so every standard error counts tasks, not
episodes (Miller 2024, "Adding error bars to evals", arXiv:2411.00640, section 2.2).

Axes: ``P`` tasks, ``G`` episodes of a task.
"""
