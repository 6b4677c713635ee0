"""Optimizers: parameter groups, and torch optimizers of them. One file each."""
