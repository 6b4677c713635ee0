"""Prompt samplers, which choose the prompts that come next. One file each."""
