"""Checks of environments: their episodes, rewards, tasks and manners, and a search for answers that earn too much."""
