"""From a scored batch to new weights: log-probs and values, advantages, minibatches, updates.

Modules here decide what is computed and in which order; how a model computes it is a training backend's affair, and
which loss it minimizes is ``rlhf_core.objective``'s.
"""
