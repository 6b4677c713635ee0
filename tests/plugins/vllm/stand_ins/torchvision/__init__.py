"""Stands in for torchvision where there is no build of it for CPUs: names that vLLM's models and Transformers import.

vLLM's models that read images import torchvision with their processors, which the engine does not use. Nothing here
computes: whatever is called fails.
"""

__version__ = "0.28.0"
