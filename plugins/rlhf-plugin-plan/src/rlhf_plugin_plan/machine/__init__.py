"""Machines as numbers: rates and memory of GPUs, and every assumption that is in no configuration."""
