"""One episode behind the endpoint: requests as calls with tokens, in place of conversations that are rendered anew.

``histories`` finds the call that a conversation goes on with, ``rendering`` makes the tokens that the engine reads,
``attempts`` tells retries from new requests, ``calls`` are what was sampled, and ``session`` puts them together.
"""
