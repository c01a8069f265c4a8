"""Clients of a real server that count the received tokens: `python -m testbed.real.load --url URL ...`."""

import argparse
import asyncio
import json
import random
import time
import uuid

import aiohttp

# Number of events after which a leaving client disconnects.
LEAVES_AFTER = 5
TIMEOUT_SECONDS = 300
# Words of a prompt that is longer than the model's context.
WORDS_TOO_LONG = 3000
# Time after a rejection until the client sends its next request.
PAUSE_SECONDS = 0.2
# Must appear in no output of tokengap.
PRIVATE = {"authorization": "Bearer canary-key", "tracestate": "vendor=canary-state", "cookie": "canary-cookie"}


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--streams", type=int, default=64, help="concurrent requests")
    parser.add_argument("--seconds", type=float, default=10, help="time during which new requests begin")
    parser.add_argument("--tokens", type=int, default=64, help="mean length of an answer; lengths vary by half")
    parser.add_argument("--words", type=int, default=16, help="length of a prompt")
    parser.add_argument("--too-long", type=float, default=0, help="share of prompts that are longer than the model's context")
    parser.add_argument("--chat", type=float, default=0, help="share of chat requests")
    parser.add_argument("--whole", type=float, default=0, help="share of requests with `stream: false`")
    parser.add_argument("--leave", type=float, default=0, help="share of clients that disconnect early")
    parser.add_argument("--abort", type=float, default=0, help="share of requests aborted by id")
    parser.add_argument("--samples", type=int, default=1, help="answers a request (`n`)")
    parser.add_argument("--pause", type=float, default=0, help="seconds between two requests of a client")
    parser.add_argument("--cumulative", action="store_true", help="each event of the server has all ids so far")
    parser.add_argument("--grpc", metavar="ADDRESS", help="send the other requests than chats to this address over gRPC")
    parser.add_argument("--ids", action="store_true", help="send prompts as token ids, for a server without tokenizer")
    parser.add_argument("--traceparent", action="store_true", help="begin a trace with each request")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--truth", required=True, help="file for one line of JSON per request")
    return parser.parse_args()


class Load:
    def __init__(self, wanted: argparse.Namespace):
        self.wanted = wanted
        self.random = random.Random(wanted.seed)
        self.done: list[dict] = []
        self.grpc = None

    def draw(self) -> dict:
        """Parameters of one request, and the record of received tokens."""
        draw, wanted = self.random.random, self.wanted
        kind = draw()
        chat = kind < wanted.chat
        # Draw a random number only if needed, so that other requests of the same seed do not change.
        words = WORDS_TOO_LONG if wanted.too_long > 0 and draw() < wanted.too_long else wanted.words
        return {
            "rid": uuid.UUID(int=self.random.getrandbits(128)).hex,
            "tokens": max(1, int(wanted.tokens * (0.5 + draw()))),
            "prompt": " ".join(f"w{self.random.randrange(8000)}" for _ in range(words)),
            "kind": "chat" if chat else "whole" if draw() < wanted.whole else "stream",
            "leave": draw() < wanted.leave,
            # As above.
            "abort": wanted.abort > 0 and draw() < wanted.abort,
            "ids": 0,
            "events": 0,
            "completion": 0,
            # Tokens of each answer, for requests with several.
            "answers": {},
            "finish": None,
            "left": False,
            "aborted": False,
            # HTTP status of the response.
            "status": None,
            "error": None,
            # By CLOCK_MONOTONIC: before the request is sent, and when the first part of its stream is read.
            "sent_ns": None,
            "first_ns": None,
            # As above.
            "trace": [f"{self.random.getrandbits(bits):0{bits // 4}x}" for bits in (128, 64) if wanted.traceparent],
        }

    async def ask(self, session: aiohttp.ClientSession, record: dict) -> None:
        if record["kind"] == "chat":
            path = "/v1/chat/completions"
            body = {
                "model": "m",
                "rid": record["rid"],
                "messages": [{"role": "user", "content": record["prompt"]}],
                "stream": True,
                "max_tokens": record["tokens"],
                "ignore_eos": True,
                "stream_options": {"include_usage": True, "continuous_usage_stats": True},
            }
        else:
            path = "/generate"
            body = {
                "rid": record["rid"],
                "stream": record["kind"] == "stream",
                "sampling_params": {"max_new_tokens": record["tokens"], "ignore_eos": True},
            }
            if self.wanted.ids or self.grpc:
                body["input_ids"] = [int(word[1:]) for word in record["prompt"].split()]
            else:
                body["text"] = record["prompt"]
            if self.wanted.samples > 1:
                # The engine then generates an id for each answer.
                del body["rid"]
                body["sampling_params"]["n"] = self.wanted.samples
        if self.grpc and record["kind"] != "chat":
            await self.grpc.ask(self, record, body, LEAVES_AFTER)
            self.done.append(record)
            return
        headers = {"traceparent": "00-{}-{}-01".format(*record["trace"])} if record["trace"] else {}
        record["sent_ns"] = time.monotonic_ns()
        try:
            async with session.post(self.wanted.url + path, json=body, headers=headers | PRIVATE) as response:
                record["status"] = response.status
                if response.status >= 400:
                    await response.read()
                    await asyncio.sleep(PAUSE_SECONDS)
                response.raise_for_status()
                if record["kind"] == "whole":
                    self.event(record, await response.json())
                else:
                    await self.read(session, record, response)
        except (aiohttp.ClientError, asyncio.TimeoutError) as error:
            record["error"] = repr(error)[:200]
        self.done.append(record)

    async def read(self, session: aiohttp.ClientSession, record: dict, response: aiohttp.ClientResponse) -> None:
        rest = b""
        async for part in response.content.iter_any():
            record["first_ns"] = record["first_ns"] or time.monotonic_ns()
            *events, rest = (rest + part).split(b"\n\n")
            for event in events:
                data = event.removeprefix(b"data: ")
                if data == b"[DONE]" or data == event:
                    continue
                self.event(record, json.loads(data))
                if record["leave"] and record["events"] >= LEAVES_AFTER:
                    record["left"] = True
                    response.close()
                    return
                if record["abort"] and not record["aborted"] and record["events"] >= LEAVES_AFTER:
                    record["aborted"] = True
                    async with session.post(f"{self.wanted.url}/abort_request", json={"rid": record["rid"]}) as told:
                        told.raise_for_status()

    def event(self, record: dict, event: dict) -> None:
        if "error" in event:
            # The Rust server ends an aborted stream with an error, and SGLang a stream whose prompt is too long.
            if not record["aborted"]:
                record["error"] = str(event["error"])[:200]
            record["finish"] = "abort"
            return
        if record["kind"] == "chat":
            if event.get("usage"):
                record["completion"] = event["usage"]["completion_tokens"]
            for choice in event["choices"]:
                record["finish"] = choice["finish_reason"] or record["finish"]
                record["events"] += bool(choice["delta"].get("content"))
            return
        meta, ids = event["meta_info"], len(event["output_ids"])
        record["ids"] = ids if self.wanted.cumulative else record["ids"] + ids
        record["completion"] = meta["completion_tokens"]
        if self.wanted.samples > 1:
            record["answers"][meta["id"]] = meta["completion_tokens"]
            record["completion"] = sum(record["answers"].values())
        if meta["finish_reason"]:
            record["finish"] = meta["finish_reason"]["type"]
        record["events"] += 1

    async def run(self) -> None:
        ends = time.monotonic() + self.wanted.seconds

        async def client(session: aiohttp.ClientSession) -> None:
            while time.monotonic() < ends:
                await self.ask(session, self.draw())
                await asyncio.sleep(self.wanted.pause)

        timeout = aiohttp.ClientTimeout(total=TIMEOUT_SECONDS)
        # The server closes connections that are idle for 5 s. Do not send a request on one that is about to be closed.
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=1)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
            if self.wanted.grpc:
                from .grpc_api import Client

                self.grpc = Client(self.wanted.grpc)
            await asyncio.gather(*(client(session) for _ in range(self.wanted.streams)))


def main() -> None:
    wanted = options()
    load = Load(wanted)
    asyncio.run(load.run())
    with open(wanted.truth, "w") as file:
        for record in load.done:
            del record["prompt"]
            file.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
