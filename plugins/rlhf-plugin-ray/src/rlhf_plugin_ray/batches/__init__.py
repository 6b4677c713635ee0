"""Batches between processes: tokens that stay in the object store, and which rank computes which rows.

Modules here hold data and pure functions on lengths; no module here calls an actor.
"""
