"""Checks of environments: their episodes, rewards, tasks and resources, and a search for answers that earn too much."""
