"""Weights on their way from the trainer to vLLM's workers: packed into buckets, in memory that both sides see."""
