"""Data sources: a growing file, a data set that is streamed, and a function. One file each."""
