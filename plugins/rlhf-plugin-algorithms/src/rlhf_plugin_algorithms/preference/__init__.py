"""Losses that learn from preferences between given answers: DPO and its relatives. One file each."""
