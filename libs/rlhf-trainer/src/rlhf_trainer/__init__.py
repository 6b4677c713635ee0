"""The training loop: rollouts, learning, evaluation, and files of a run that survive a kill."""
