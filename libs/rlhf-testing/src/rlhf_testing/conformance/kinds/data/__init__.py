"""Checks of components that decide which data a run sees."""
