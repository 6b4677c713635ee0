"""A role read without training it: log-probs, statistics, most probable tokens and values of whole batches."""
