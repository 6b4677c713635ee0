"""Rows of a batch on their way to the device and back: micro-batches, packed rows, shared prompts, placed results."""
