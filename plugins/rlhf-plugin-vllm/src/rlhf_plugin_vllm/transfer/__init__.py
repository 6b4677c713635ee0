"""Weights from a trainer in the engine's own process. From other processes they come by ``rlhf_core.weights``."""
