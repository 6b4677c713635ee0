"""Tasks that environments make: their rows, read by index or lazily, and a mix of several environments by shares."""
