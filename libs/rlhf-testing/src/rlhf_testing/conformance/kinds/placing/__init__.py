"""Checks of what a run is placed with: runtimes, and models that read images."""
