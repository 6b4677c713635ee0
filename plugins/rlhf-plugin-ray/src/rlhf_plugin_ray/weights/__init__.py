"""The way of weights from ranks to engines: the object store's packed buckets, direct links, and which way is taken.

Modules here move bytes. When weights are sent is the delivery's decision, in ``engines``.
"""
