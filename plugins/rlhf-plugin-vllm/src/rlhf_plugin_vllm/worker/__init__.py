"""Modules that run inside of vLLM's worker processes. Only vLLM's workers import them."""
