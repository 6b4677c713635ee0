"""Audits of recorded log-probs: which of sampler and trainer differs from a plain forward, and what explains it."""
