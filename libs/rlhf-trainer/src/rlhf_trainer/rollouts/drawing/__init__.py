"""Draws of prompts: the prompts as samplers see them, the order without a sampler, results, and mistakes."""
