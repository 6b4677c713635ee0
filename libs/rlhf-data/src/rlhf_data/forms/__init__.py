"""Forms in which people write rows: a table of them, how each is recognized, and how it becomes our own columns."""
