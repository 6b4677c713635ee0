"""Ranks that compute together: slices of tokens, slices of weights, and passes that all ranks make alike.

No module here updates a weight.
"""
