"""Chat templates as programs of somebody else: run within limits, given contents of the kind that they write, and
looked through for what they leave out."""
