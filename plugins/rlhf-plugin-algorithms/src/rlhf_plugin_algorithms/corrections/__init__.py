"""Importance-sampling corrections of the difference between sampler and trainer. One file each."""
