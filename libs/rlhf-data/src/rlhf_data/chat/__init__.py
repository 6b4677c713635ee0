"""Chat templates: conversations as token ids, the tokens between two turns, and answers read from token ids.

The policy's own tokens are never decoded and tokenized again. What other people wrote (a data row, a user, a tool, an
environment) never becomes a control token, unless a run asks for it.
"""
