"""Generation beside training of the same process: whether the engine does it, and in which thread and stream."""
