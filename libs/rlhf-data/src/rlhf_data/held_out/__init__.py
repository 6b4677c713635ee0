"""Rows to evaluate on: which rows a share holds out, and which held-out rows are trained on all the same."""
