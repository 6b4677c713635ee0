"""Decoding that stays on the device: keys and values in pages, several tokens between two looks of the host, and on a
GPU each token one captured graph.

What the host decides (who sits in which row, which pages are whose) lives in ``pages`` and ``batch``; what the device
does for one token in ``rows``, ``step`` and the kernels. Nothing here knows the callers of requests."""
