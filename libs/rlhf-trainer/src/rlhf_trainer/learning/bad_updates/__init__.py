"""Updates from which a role learns nothing: skipped ones end the run after a while, gradients of 0 bring a warning.

Every command that trains counts them here.
"""
