"""Sets as a whole: which rows are trained on, and their tokens on disk."""
