"""Tables of another framework's options: their kinds, their defaults, and what becomes of each."""
