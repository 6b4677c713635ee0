"""Memory of a run: what engine and roles share on accelerators, and the objects that Python searches for garbage."""
