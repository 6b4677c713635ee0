"""Transformers models as roles: loading, proof that packing changes nothing, heads, adapters, export.

No module here trains; the optimizer's side is ``rlhf_torch.training``.
"""
