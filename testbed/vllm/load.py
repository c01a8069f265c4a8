"""Streaming clients of a vLLM server, which write their counts as one JSON line for each request.

usage: load.py URL FILE STREAMS SECONDS TOKENS LEAVE SEED [COUNT [TOO_LONG]]

LEAVE is the share of clients that disconnect after their fifth event. COUNT selects the source of token counts: `ids` (the default),
`usage`, or `text`: events have text only, and the usage at the end counts all tokens. TOO_LONG is the share of prompts that are longer than the model's
context. `PAUSE` in the environment: seconds between two requests of a client.
`PREFILL` in the environment is the URL of a server that computes each prompt first, as vLLM's examples of disaggregated prefill do it.
Needs aiohttp.
"""

import asyncio
import json
import os
import random
import sys
import time

import aiohttp

URL, FILE, STREAMS, SECONDS, TOKENS, LEAVE, SEED, COUNT, TOO_LONG = [*sys.argv[1:], *("ids", "0")[max(0, len(sys.argv) - 8) :]][:9]
PREFILL, PAUSE = os.environ.get("PREFILL"), float(os.environ.get("PAUSE", "0"))
draw = random.Random(int(SEED))
# Number of events after which a client leaves.
FEW = 5
WORDS, WORDS_TOO_LONG = 8, 3000


def new_tokens(event, before):
    """Number of tokens in an event, given that earlier events had `before` tokens. With text only, whether it has text."""
    choice = event["choices"][0]
    if COUNT == "text":
        return bool(choice.get("text") or choice.get("delta", {}).get("content"))
    if COUNT == "usage":
        return event["usage"]["completion_tokens"] - before
    return len(choice.get("token_ids") or [])


async def request(session, results):
    wanted = max(1, int(float(TOKENS) * draw.uniform(0.5, 1.5)))
    chat, leaves = draw.random() < 0.5, draw.random() < float(LEAVE)
    # Draw a random number only if needed, so that other requests of the same seed do not change.
    words = WORDS_TOO_LONG if float(TOO_LONG) > 0 and draw.random() < float(TOO_LONG) else WORDS
    prompt = " ".join(f"w{draw.randrange(9999)}" for _ in range(words))
    body = {
        **{"model": "m", "max_tokens": wanted, "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}},
    }
    # Dynamo's frontend refuses parameters that it does not know.
    if COUNT == "ids":
        body["return_token_ids"] = True
    elif COUNT == "usage":
        body["stream_options"]["continuous_usage_stats"] = True
    if chat:
        path, body["messages"] = "/v1/chat/completions", [{"role": "user", "content": prompt}]
    else:
        path, body["prompt"] = "/v1/completions", prompt
    result = {"received": 0, "events": 0, "completion": None, "left": False, "silence_s": 0.0, "first_s": None, "status": None}
    if PREFILL:
        first = {name: value for name, value in body.items() if name != "stream_options"} | {"stream": False, "max_tokens": 1}
        async with session.post(PREFILL + path, json=first) as response:
            await response.read()
    began = last = result["began_s"] = time.monotonic()
    async with session.post(URL + path, json=body) as response:
        result["status"] = response.status
        if response.status >= 400:
            await response.read()
        async for line in response.content:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            if "choices" not in event:
                break
            result["id"] = event["id"]
            if not event["choices"]:
                result["completion"] = event["usage"]["completion_tokens"]
                if COUNT == "text":
                    result["received"] = result["completion"]
                continue
            new = new_tokens(event, result["received"])
            if not new:
                continue
            now = result["ended_s"] = time.monotonic()
            if result["first_s"] is None:
                result["first_s"] = now - began
            else:
                result["silence_s"] = max(result["silence_s"], now - last)
            last = now
            result["received"] += new
            result["events"] += 1
            if leaves and result["events"] == FEW:
                result["left"] = True
                response.close()
                break
    results.append(result)


async def watch_delay(longest):
    """Keeps how late this process woke, at most: so much later than the kernel its clients may see an event."""
    while True:
        due = time.monotonic() + 0.01
        await asyncio.sleep(0.01)
        longest[0] = max(longest[0], time.monotonic() - due)


async def main():
    results, ends = [], time.monotonic() + float(SECONDS)
    longest_delay = [0.0]

    async def client(session):
        while time.monotonic() < ends:
            try:
                await request(session, results)
                await asyncio.sleep(PAUSE)
            except aiohttp.ClientError:
                # The server has exited.
                return

    connector, timeout = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(total=300)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        watcher = asyncio.create_task(watch_delay(longest_delay))
        await asyncio.gather(*(client(session) for _ in range(int(STREAMS))))
        watcher.cancel()
    with open(FILE, "w") as file:
        file.writelines(json.dumps(result | {"delay_s": longest_delay[0]}) + "\n" for result in results)


asyncio.run(main())
