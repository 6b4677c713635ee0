"""The page as a file: data in chunks that are read when they are looked at, and HTML in which no data is markup."""
