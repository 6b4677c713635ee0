"""Nothing that is imported by name."""
