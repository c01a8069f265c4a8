"""`python -m testbed client`: HTTP clients of a receiver that runs with --http."""

import asyncio

import aiohttp
import orjson

from . import call_text, leaving, process
from . import plan as plans
from .consumer import Received, Totals
from .truth import Truth


def add_options(parser) -> None:
    parser.add_argument("--url", required=True, help="URL that the receiver printed")
    parser.add_argument("--http2", action="store_true", help="use HTTP/2, all requests on one connection")
    parser.add_argument("--openai", action="store_true", help="send half of the requests to each OpenAI endpoint, with usage")
    leavers = parser.add_argument_group("clients that leave after some outputs, the first ones of the plan")
    for kind in leaving.KINDS:
        leavers.add_argument(f"--{kind}", type=int, default=0, metavar="N", help=leaving.KINDS[kind])
    plans.add_options(parser)
    process.add_options(parser)


def run(options) -> int:
    return asyncio.run(Clients(options).run())


class Http1:
    """Requests with a connection each."""

    async def __aenter__(self):
        timeout = aiohttp.ClientTimeout(total=None)
        self.session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, ssl=False), timeout=timeout)
        return self

    async def __aexit__(self, *_):
        await self.session.close()

    async def events(self, url: str, body: dict, accepted=lambda: None):
        """Events of the response. Calls `accepted` when the server has accepted the request."""
        async with self.session.post(url, json=body) as response:
            accepted()
            async for line in response.content:
                if line.startswith(b"data: {"):
                    yield orjson.loads(line[6:])


class Http2:
    """Requests that share a connection."""

    async def __aenter__(self):
        import httpx

        limits = httpx.Limits(max_connections=1)
        self.client = httpx.AsyncClient(http1=False, http2=True, verify=False, timeout=None, limits=limits)
        return self

    async def __aexit__(self, *_):
        await self.client.aclose()

    async def events(self, url: str, body: dict, accepted=lambda: None):
        """Events of the response. Calls `accepted` when the server has accepted the request."""
        async with self.client.stream("POST", url, json=body) as response:
            accepted()
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    yield orjson.loads(line[6:])


class Clients:
    """HTTP clients with one connection per request."""

    def __init__(self, options):
        self.options, self.url = options, options.url
        self.plan = plans.from_options(options)
        self.life = process.Life(options.deadline, options.wait_go)
        self.truth = Truth(options.truth)
        self.totals = Totals()
        self.rounds = self.plan.numbers()
        self.started: set[int] = set()
        self.tasks: set[asyncio.Task] = set()
        kinds = [kind for kind in leaving.KINDS for _ in range(getattr(options, kind))]
        self.leaving = iter(kinds)
        self.stuck = kinds.count("stuck")

    async def run(self) -> int:
        async with Http2() if self.options.http2 else Http1() as self.http:
            open_ = [connected for _ in range(self.plan.rounds_ahead) for connected in self.open_next_round()]
            await asyncio.gather(*open_)
            self.life.ready(self.url)
            while self.tasks and not self.life.over:
                await asyncio.sleep(0.02)
            for task in self.tasks:
                task.cancel()
            await asyncio.gather(*self.tasks, return_exceptions=True)
        self.truth.close(vars(self.totals))
        return 3 if self.life.expired else 0

    def open_next_round(self) -> list[asyncio.Future]:
        """Starts the clients of one more round. Each future is set when the server has accepted its request."""
        number = next(self.rounds, None)
        if number is None:
            return []
        accepted = []
        for request in self.plan.round(number):
            future = asyncio.get_running_loop().create_future()
            kind = next(self.leaving, None)
            if kind:
                one = leaving.one(self, kind, request, future)
            elif self.options.openai:
                one = self.one_of_openai(request, future)
            else:
                one = self.one(number, request, future)
            task = asyncio.create_task(one)
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)
            accepted.append(future)
        return accepted

    async def one(self, number: int, request: plans.Request, accepted: asyncio.Future) -> None:
        """Runs one request from its POST to `[DONE]`."""
        received = Received(request.rid)
        try:
            body = {"rid": request.rid, "stream": request.stream}
            async for event in self.http.events(f"{self.url}/generate", body, lambda: accepted.set_result(None)):
                received.add(event)
                if number not in self.started:
                    self.started.add(number)
                    self.open_next_round()
        finally:
            self.ended(received)

    async def one_of_openai(self, request: plans.Request, accepted: asyncio.Future) -> None:
        """The same with OpenAI endpoints: tokens are words of text, and usage is reported once, at the end."""
        received = Received(request.rid)
        body = {"rid": request.rid, "model": "engine", "stream": True, "stream_options": {"include_usage": True}}
        calls = self.plan.text == "calls"
        if calls:
            body["tools"] = call_text.TOOLS
        if calls or request.index % 2:
            path, body["messages"] = "/v1/chat/completions", [{"role": "user", "content": "go"}]
        else:
            path, body["prompt"] = "/v1/completions", "go"
        try:
            accepted.set_result(None)
            async for event in self.http.events(self.url + path, body):
                received.add_calls(event) if calls else received.add_text(event)
        finally:
            self.ended(received)

    async def others_ended(self) -> None:
        """Waits until only stuck clients remain, and then a moment longer."""
        while len(self.tasks) > self.stuck and not self.life.over:
            await asyncio.sleep(0.02)
        await asyncio.sleep(0.5)

    def ended(self, received: Received, left: str | None = None) -> None:
        """Records one client's truth."""
        line = received.summary()
        self.totals.add(line)
        self.truth.write("client", **line, left=left)
