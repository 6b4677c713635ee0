"""Records of a run, read as far as they go: a run may be going on, killed, damaged, or of another version."""
