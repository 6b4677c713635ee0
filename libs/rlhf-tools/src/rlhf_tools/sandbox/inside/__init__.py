"""Code that runs in the sandbox's own process, on the standard library alone."""
