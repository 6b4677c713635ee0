"""Rows of every kind as ``rlhf data check`` reads them: without a model, as far as that goes."""
