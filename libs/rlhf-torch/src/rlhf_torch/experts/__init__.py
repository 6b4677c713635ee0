"""Mixtures of experts in training: the balancing loss of a model's family, and how tokens spread over experts."""
