"""Rollout executors for one turn and many turns, and toy environments."""
