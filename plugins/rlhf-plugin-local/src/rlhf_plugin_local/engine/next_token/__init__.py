"""The next token of a sequence: its distribution, grammars that cut it, and the draw from it."""
