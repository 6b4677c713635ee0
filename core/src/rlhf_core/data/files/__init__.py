"""Files that are no table by themselves: packed ones, patterns of several, and plain texts."""
