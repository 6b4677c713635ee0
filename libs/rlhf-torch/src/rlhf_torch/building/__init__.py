"""Ways from functions on tensors to kernels of a GPU: compiled by torch, or written in Triton, with a way out of each.

Kernels themselves lie beside what they compute.
"""
