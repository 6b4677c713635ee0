"""The one training loop: rollouts, scores, advantages, updates, records, checkpoints."""
