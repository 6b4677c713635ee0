"""Models as numbers: shapes and activations read from a ``config.json``. No module here loads a weight."""
