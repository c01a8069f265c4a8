"""`python -m testbed dynamo.client`: receives a Dynamo worker's streams like a frontend, or runs HTTP clients of a real frontend."""

import asyncio
import json
import os
import sys
import uuid

from .. import plan as plans
from .. import process
from ..consumer import Totals
from ..truth import Truth, mono_ns
from .release import Dynamo


def add_options(parser) -> None:
    parser.add_argument("--dynamo", required=True, metavar="RELEASE", help="Dynamo release")
    parser.add_argument("--url", help="use HTTP with the frontend at this URL instead")
    parser.add_argument("--leave-at", type=int, metavar="N", help="every client leaves at its Nth output")
    plans.add_options(parser)
    process.add_options(parser)


def run(options) -> int:
    import uvloop

    uvloop.install()
    status = asyncio.run(Clients(options).run())
    # Skip interpreter shutdown, because the runtime's threads may still call into it.
    sys.stdout.flush()
    os._exit(status)


class ReceivedTokens:
    """Tokens received by one client."""

    def __init__(self, rid: str):
        self.rid = rid
        self.outputs = 0
        self.ids: list[int] = []
        self.completion_tokens = self.finish = self.first_ns = self.last_ns = None

    def add(self, ids: list[int], usage: dict | None, finish) -> None:
        """Adds one chunk."""
        self.last_ns = mono_ns()
        self.first_ns = self.first_ns or self.last_ns
        self.outputs += 1
        self.ids += ids
        self.completion_tokens = (usage or {}).get("completion_tokens", self.completion_tokens)
        self.finish = finish or self.finish

    def summary(self) -> dict:
        """A line of truth, in the format of the other clients."""
        total = self.completion_tokens if self.finish else None
        return {
            "rid": self.rid,
            "outputs": self.outputs,
            "ids": len(self.ids),
            "distinct_ids": len(set(self.ids)),
            "completion_tokens": total,
            "lost": None if total is None else total - len(set(self.ids)),
            "finish": self.finish,
            "first_ns": self.first_ns,
            "last_ns": self.last_ns,
        }


class Clients:
    """A stream for each request of the plan."""

    def __init__(self, options):
        self.options = options
        self.plan = plans.from_options(options)
        self.life = process.Life(options.deadline, options.wait_go)
        self.truth = Truth(options.truth)
        self.totals = Totals()

    async def run(self) -> int:
        requests = self.plan.round(0)
        if self.options.url:
            import aiohttp

            connector = aiohttp.TCPConnector(limit=0)
            async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None)) as session:
                await self.all(requests, lambda request, received: self.over_http(session, request, received))
        else:
            dynamo = Dynamo(self.options.dynamo)
            client = await dynamo.endpoint(dynamo.connect(asyncio.get_running_loop())).client()
            await client.wait_for_instances()
            context = dynamo.runtime.Context
            await self.all(requests, lambda request, received: self.direct(client, context, request, received))
        self.truth.close(vars(self.totals))
        return 3 if self.life.expired else 0

    async def all(self, requests, one) -> None:
        """Runs them concurrently."""
        self.life.ready()
        await asyncio.gather(*(self.ended(one, request) for request in requests))

    async def ended(self, one, request) -> None:
        received = ReceivedTokens(request.rid)
        try:
            await one(request, received)
        except Exception as error:  # the stream ended with an error
            print("FAILED", request.rid, str(error)[:200], flush=True)
        line = received.summary()
        self.totals.add(line)
        self.truth.write("client", **line)

    async def direct(self, client, context, request, received: ReceivedTokens) -> None:
        """Sends a request through the runtime, like a frontend."""
        own = context(str(uuid.UUID(request.rid)))
        stream = await client.generate({"token_ids": plans.PROMPT}, context=own)
        async for item in stream:
            out = item.data()
            received.add(out.get("token_ids") or [], out.get("completion_usage"), out.get("finish_reason"))
            if received.outputs == self.options.leave_at:
                own.stop_generating()

    async def over_http(self, session, request, received: ReceivedTokens) -> None:
        """Sends a request to a frontend. Token N of the model is the text ` tN`."""
        body = {"model": "m", "prompt": "hello", "max_tokens": request.tokens, "stream": True, "ignore_eos": True}
        body |= {"stream_options": {"include_usage": True}}
        named = {"traceparent": f"00-{request.rid}-00f067aa0ba902b7-01", "x-dynamo-request-id": str(uuid.UUID(request.rid))}
        async with session.post(f"{self.options.url}/v1/completions", json=body, headers=named) as response:
            async for line in response.content:
                if not line.startswith(b"data: {"):
                    continue
                event = json.loads(line[6:])
                for choice in event.get("choices") or [{}]:
                    ids = [int(word[1:]) for word in (choice.get("text") or "").split()]
                    received.add(ids, event.get("usage"), choice.get("finish_reason"))
                if received.outputs == self.options.leave_at:
                    return
