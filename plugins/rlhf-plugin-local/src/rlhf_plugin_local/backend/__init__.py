"""The torch training backend."""
