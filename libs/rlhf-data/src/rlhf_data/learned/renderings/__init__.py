"""Conversations that two models read, each in its own rendering."""
