"""From a scored batch to new weights: log-probs and values, advantages, minibatches, updates.

Modules here decide what is computed and in which order. A training backend computes it, and ``rlhf_core.objective`` has
the loss that is minimized.
"""
