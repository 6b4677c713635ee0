"""Reward shapers and sample filters."""
