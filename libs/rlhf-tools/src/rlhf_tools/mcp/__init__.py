"""Servers of the Model Context Protocol as tools, by the official SDK, which is imported when a server is opened."""
