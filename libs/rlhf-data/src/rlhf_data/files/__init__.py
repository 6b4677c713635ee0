"""Files that are not tables: JSON Lines and JSON, compressed files, patterns of several files, and plain texts."""
