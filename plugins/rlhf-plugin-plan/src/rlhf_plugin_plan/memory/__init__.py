"""Bytes: what each process of a run holds at its worst moment, and which processes share a GPU."""
