"""Checks of components that are pure functions of numbers."""
