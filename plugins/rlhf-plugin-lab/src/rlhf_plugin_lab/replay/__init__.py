"""Training of a span of a recorded run again: to the bit, or with options changed on the same samples."""
