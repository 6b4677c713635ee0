"""Metrics of evaluations during training, beside reward and pass@k. One file each."""
