"""`python -m engine client`: HTTP clients of a receiver that runs with --http."""

import asyncio

import aiohttp
import orjson

from . import plan as plans
from . import process
from .consumer import Received, Totals
from .truth import Truth


def add_options(parser) -> None:
    parser.add_argument("--url", required=True, help="what the receiver printed")
    plans.add_options(parser)
    process.add_options(parser)


def run(options) -> int:
    return asyncio.run(Clients(options).run())


class Clients:
    """One connection a request."""

    def __init__(self, options):
        self.url = options.url
        self.plan = plans.from_options(options)
        self.life = process.Life(options.deadline, options.wait_go)
        self.truth = Truth(options.truth)
        self.totals = Totals()
        self.rounds = self.plan.numbers()
        self.started: set[int] = set()
        self.tasks: set[asyncio.Task] = set()

    async def run(self) -> int:
        timeout = aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as self.session:
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
        """Starts the clients of one more round; each future is set when the server has accepted its request."""
        number = next(self.rounds, None)
        if number is None:
            return []
        accepted = []
        for request in self.plan.round(number):
            future = asyncio.get_running_loop().create_future()
            task = asyncio.create_task(self.one(number, request, future))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)
            accepted.append(future)
        return accepted

    async def one(self, number: int, request: plans.Request, accepted: asyncio.Future) -> None:
        """One request from its POST to `[DONE]`."""
        received = Received(request.rid)
        try:
            body = {"rid": request.rid, "stream": request.stream}
            async with self.session.post(f"{self.url}/generate", json=body) as response:
                accepted.set_result(None)
                async for line in response.content:
                    if line.startswith(b"data: {"):
                        received.add(orjson.loads(line[6:]))
                        if number not in self.started:
                            self.started.add(number)
                            self.open_next_round()
        finally:
            line = received.summary()
            self.totals.add(line)
            self.truth.write("client", **line)
