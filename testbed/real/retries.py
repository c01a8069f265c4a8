"""Clients of a real server that send two requests with one rid after another: `python -m testbed.real.retries --url URL --truth FILE`.

SGLang aborts the rid of a streamed response two seconds after its end, and so the second request, unless that has ended or begins later.
"""

import argparse
import asyncio
import json
import uuid

import aiohttp

# Clients of each kind: the second request follows at once, or so late that nothing aborts it, or its client aborts it.
EACH = 3
KINDS = {"at once": 0.2, "later": 3.0, "aborted by its client": 0.2}
LONG, SHORT = 1500, 4


async def ask(session: aiohttp.ClientSession, rid: str, tokens: int) -> str | None:
    """Streams a response. Returns its finish reason."""
    sampling = {"max_new_tokens": tokens, "ignore_eos": True}
    finish = None
    async with session.post("/generate", json={"rid": rid, "text": "w1 w2 w3", "stream": True, "sampling_params": sampling}) as response:
        response.raise_for_status()
        async for line in response.content:
            if line.startswith(b"data: {"):
                reason = json.loads(line[6:])["meta_info"]["finish_reason"]
                finish = reason["type"] if reason else finish
    return finish


async def client(session: aiohttp.ClientSession, aborting: aiohttp.ClientSession, kind: str) -> dict:
    rid = uuid.uuid4().hex
    first = await ask(session, rid, SHORT)
    await asyncio.sleep(KINDS[kind])
    aborts = kind == "aborted by its client"
    # The later ones are short, because nothing ends them.
    second = asyncio.create_task(ask(session, rid, SHORT * 8 if kind == "later" else LONG))
    if aborts:
        await asyncio.sleep(0.7)
        async with aborting.post("/abort_request", json={"rid": rid}) as told:
            told.raise_for_status()
    return {"rid": rid, "kind": kind, "first": first, "second": await second}


async def run(url: str, abort_url: str) -> list[dict]:
    timeout = aiohttp.ClientTimeout(total=300)
    async with aiohttp.ClientSession(url, timeout=timeout) as session, aiohttp.ClientSession(abort_url) as aborting:
        return await asyncio.gather(*(client(session, aborting, kind) for kind in KINDS for _ in range(EACH)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--abort-url", help="server that is sent the aborts, if URL is that of a router")
    parser.add_argument("--truth", required=True, help="file for one line of JSON per client")
    wanted = parser.parse_args()
    with open(wanted.truth, "w") as file:
        file.writelines(json.dumps(line) + "\n" for line in asyncio.run(run(wanted.url, wanted.abort_url or wanted.url)))


if __name__ == "__main__":
    main()
