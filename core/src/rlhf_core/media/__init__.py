"""Images of a run: where they come from, what is refused, and the store that keeps each once.

Between processes go references (``MediaRef``), never pixels. Modules here know files, limits and places among tokens;
they know no model family and no tokenizer. Pillow is imported where an image is opened.
"""
