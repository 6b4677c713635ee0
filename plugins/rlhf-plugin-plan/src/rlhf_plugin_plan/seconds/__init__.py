"""Seconds: operations and bytes of each phase, at the hardware's limit and at measured rates."""
