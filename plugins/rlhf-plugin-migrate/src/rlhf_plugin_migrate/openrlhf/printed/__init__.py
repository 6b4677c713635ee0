"""Programs that become a command line: what replaces them has no configuration."""
