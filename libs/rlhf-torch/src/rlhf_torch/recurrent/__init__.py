"""Layers that carry a state along the sequence (gated linear attention, short convolutions), for packed rows."""
