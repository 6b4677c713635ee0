"""Observers of a run, seen from the loop: told of its events, asked whether it ends, saved and restored."""
