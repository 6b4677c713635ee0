"""A model behind an engine, for commands that generate: options, weights from files, and the engine's life."""
