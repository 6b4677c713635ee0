"""Places where environments run: this process, worker processes, an interpreter of their own, or a server."""
