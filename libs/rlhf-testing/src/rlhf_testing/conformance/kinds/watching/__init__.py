"""Checks of what hears the events of a run."""
