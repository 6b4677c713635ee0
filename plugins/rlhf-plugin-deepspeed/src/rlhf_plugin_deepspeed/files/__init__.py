"""A role in files and on its way out of memory: loading, training state, export, weights for engines, offloading."""
