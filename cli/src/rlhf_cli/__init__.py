"""Command line ``rlhf``: one module for each command, and ``runs`` for commands of plugins."""
