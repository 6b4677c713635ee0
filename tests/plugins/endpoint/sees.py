"""An agent that shows the policy an image in each of two turns, with the client of OpenAI, and judges by its words."""

import base64
import io

import openai
from PIL import Image


def shown(number: int) -> dict:
    """A part of a message: an image whose size and color depend on a number."""
    image = Image.new("RGB", (16 + 8 * (number % 3), 16), (40 * number % 256, 90, 17))
    buffer = io.BytesIO()
    image.save(buffer, format="PNG")
    encoded = base64.b64encode(buffer.getvalue()).decode()
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{encoded}"}}


async def agent(context):
    start = context.seed % 5
    async with openai.AsyncOpenAI(base_url=context.base_url, api_key=context.api_key) as client:
        messages = list(context.messages)
        words = ""
        for turn in range(2):
            if turn:
                text = {"type": "text", "text": "and now?"}
                messages.append({"role": "user", "content": [shown(start + turn), text]})
            reply = await client.chat.completions.create(model=context.model, messages=messages)
            message = reply.choices[0].message
            messages.append(message.model_dump(exclude_none=True))
            words += message.content or ""
    return float(sum(map(ord, words)) % 5)
