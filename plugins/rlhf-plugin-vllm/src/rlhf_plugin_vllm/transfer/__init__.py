"""Transfer of weights from a trainer in the engine's own process. Other trainers use ``rlhf_core.weights``."""
