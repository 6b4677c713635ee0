"""Models that read images: from references to pixels, features and positions, beside the tokens of packed rows.

A family (``family.VisionFamily``) brings what differs between models. Modules here know no family.
"""
