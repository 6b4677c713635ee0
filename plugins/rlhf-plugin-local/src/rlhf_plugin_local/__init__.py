"""The embedded runtime: engine, training backend and placement in one process."""
