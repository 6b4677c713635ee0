"""The ``rlhf`` command."""
