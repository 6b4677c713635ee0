"""Observers that end a run before its last step. One file each."""
