"""Optimizers: AdamW."""
