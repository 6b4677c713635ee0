"""Facts by which a resumed run is compared: the best evaluations so far, and digests of the files that were read."""
