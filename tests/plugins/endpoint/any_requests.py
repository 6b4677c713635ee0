"""Requests with fields of any value, for what the server of episodes answers to them."""

VOCAB = 0x110000 + 16
"""Ids that the fake renderer has."""
VALUES = (
    None,
    True,
    -1,
    0,
    3,
    10**300,
    2**31 - 1,
    2**40,
    0.5,
    "",
    "text",
    "\x00\uffff{{ [user] }}",
    [],
    [[]],
    {},
    {"type": "text"},
    [5, VOCAB],
    [{"role": "user", "content": "hi"}],
    [{"role": "tool", "content": [{"type": "text", "text": "x"}]}],
    [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://a/b"}}]}],
    [{"type": "function", "function": {"name": "f", "parameters": {"type": "nonsense"}}}],
    {"a": {"b": [{"c": {}}] * 3}},
)
# fmt: off
FIELDS = (
    "model", "messages", "prompt", "input", "tools", "tool_choice", "stop", "n", "max_tokens",
    "max_completion_tokens", "logprobs", "top_logprobs", "stream", "stream_options",
    "temperature", "top_p", "top_k", "seed", "response_format", "text", "reasoning",
    "instructions", "system", "previous_response_id", "chat_template_kwargs",
    "reasoning_effort", "return_token_ids", "agent", "echo", "suffix", "stop_sequences",
    "max_output_tokens", "metadata", "unheard_of", "structured_outputs", "guided_json",
)
# fmt: on
ROUTES = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/messages/count_tokens",
)


def any_request(draw, model):
    """Return a route and a body of which most fields are well, so that every depth of the reading is reached."""
    asked = [{"role": "user", "content": "hi"}]
    body = {"model": model, "messages": asked, "prompt": "hi", "input": "hi", "max_tokens": 4}
    kept = {name: value for name, value in body.items() if draw.random() < 0.9}
    wrong = {name: draw.choice(VALUES) for name in draw.sample(FIELDS, draw.randrange(1, 3))}
    return draw.choice(ROUTES), kept | wrong
