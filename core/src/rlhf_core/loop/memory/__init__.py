"""Memory of accelerators that engine and roles share: whether both keep theirs, and the order if they do not."""
