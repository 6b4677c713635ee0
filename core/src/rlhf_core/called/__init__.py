"""Components that are called like functions: what they are called with, and what comes back."""
