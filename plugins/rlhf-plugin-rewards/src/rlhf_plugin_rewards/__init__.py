"""Verifiable rewards: your function, exact match, regular expression, math equivalence."""
