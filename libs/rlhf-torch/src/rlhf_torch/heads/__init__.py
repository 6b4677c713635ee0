"""From hidden states to log-probs, entropies and other statistics of actions, a chunk of logits at a time.

Logits of all tokens are never in memory at once.
"""
