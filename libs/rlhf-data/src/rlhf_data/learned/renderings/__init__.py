"""Conversations that two models read, each in a rendering of its own."""
