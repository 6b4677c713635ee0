"""Saving by the loop: exported models, and checkpoints that cannot be written."""
