"""Contracts of components that are pure functions."""
