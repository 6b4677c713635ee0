"""The embedded engine: continuous batching on the trainer's own weights, in the trainer's own process."""
