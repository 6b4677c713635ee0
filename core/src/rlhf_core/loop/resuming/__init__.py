"""What a resumed run is compared by: the best evaluations so far, and digests of the files that were read."""
