"""Many sequences in one row: where each begins, and attention that keeps them apart.

Modules here know tokens, positions and kernels. They know no role, no loss and no option.
"""
