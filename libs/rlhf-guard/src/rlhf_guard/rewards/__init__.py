"""Scores of finished samples: several rewards at once, each in a process that can be stopped, errors by policy."""
