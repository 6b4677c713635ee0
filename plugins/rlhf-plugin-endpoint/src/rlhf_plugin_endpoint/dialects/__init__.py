"""The forms in which clients ask and read: OpenAI's chat, completions and responses, and Anthropic's messages.

A dialect turns a body into a ``ModelRequest`` and answers into the dialect's reply, whole or as a stream of events. It
knows nothing of tokens beyond what replies show, and nothing of episodes.
"""
