"""Weights and adapters on their way from the engine's process to vLLM's workers, and the digest of what is served."""
