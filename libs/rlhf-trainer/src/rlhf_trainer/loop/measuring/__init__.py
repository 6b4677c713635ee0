"""Metrics of plugins in evaluations, asked and checked."""
