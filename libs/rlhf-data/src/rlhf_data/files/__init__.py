"""Files that are no table by themselves: JSON Lines and JSON, packed ones, patterns of several, and plain texts."""
