"""Files that are written whole or not at all, and the folder of a run with the names of its files."""
