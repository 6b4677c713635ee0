"""Processes of the run and waiting for them: what every actor does first, deadlines, restarts, dispatch.

Nothing here knows what a process computes.
"""
