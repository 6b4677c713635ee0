"""State of training that ranks share: fragments of parameters, optimizers that see whole ones, and parts in files."""
