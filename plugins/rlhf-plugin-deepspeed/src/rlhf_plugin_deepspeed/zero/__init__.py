"""Training under ZeRO stages 0 to 3: DeepSpeed's engine, cut parameters, and optimizers that see whole ones.

How ranks share a sequence or a matrix is in ``parallel``; how a role is written to disk in ``files``.
"""
