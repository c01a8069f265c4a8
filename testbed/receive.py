"""`python -m testbed receive`: a tokenizer process, with clients inside it or over HTTP."""

import asyncio
import os

import zmq

from . import openai_api, process, stubs
from . import plan as plans
from .consumer import ConsumerDelay, Received, Totals
from .release import Release
from .sockets import Inbox, StampedAsyncContext
from .tokenizer import Tokenizer
from .truth import Truth, mono_ns


# Event-loop turns after which all clients of a frame have run: three for each on CPython up to 3.11, in groups of 16.
TURNS_TO_SETTLE = 64


def add_options(parser) -> None:
    parser.add_argument("--bind", required=True, metavar="EP", help="inbox of the tokenizer")
    parser.add_argument("--loop", choices=("uvloop", "asyncio"), default="uvloop", help="event loop")
    parser.add_argument("--cumulative", action="store_true", help="each output has all tokens so far, as without --stream-output")
    parser.add_argument("--stream-output", action="store_true", help="each output has the new tokens (the default)")
    parser.add_argument("--detokenizer", action="store_true", help="frames come from a detokenizer")
    parser.add_argument("--turns", type=int, default=0, help="extra event-loop turns of a client per output")
    parser.add_argument("--busy", type=float, default=0.0, metavar="SECONDS", help="CPU time of a client per output")
    parser.add_argument("--other-thread", action="store_true", help="clients are resumed from another thread")
    parser.add_argument("--http", action="store_true", help="serve clients over HTTP on a free port of 127.0.0.1")
    parser.add_argument("--tls", action="store_true", help="serve them over TLS, with a certificate that openssl(1) makes")
    parser.add_argument("--http2", action="store_true", help="serve them with Granian, as --enable-http2 does")
    parser.add_argument("--middleware", action="store_true", help="serve through a Starlette BaseHTTPMiddleware")
    parser.add_argument("--openai", action="store_true", help="also serve the OpenAI endpoints; waits for all requests")
    parser.add_argument("--fault", choices=openai_api.FAULTS, help="damage the responses of the OpenAI endpoints")
    parser.add_argument("--tool-call-parser", metavar="NAME", help="parser of the release, for `--text calls`")
    parser.add_argument("--stall", type=float, default=0.0, metavar="SECONDS", help="a client blocks the event loop for this time")
    parser.add_argument("--stall-every", type=int, default=1000, metavar="N", help="block at every Nth output of all clients")
    parser.add_argument("--lockstep", action="store_true", help="print TOOK when a frame's outputs have reached the clients")
    parser.add_argument("--worker", type=int, nargs=2, metavar=("K", "N"), help="tokenizer worker K (from 0) of N")
    parser.add_argument("--port", type=int, help="on the command line only, where `attach` reads the port of a server")
    parser.add_argument("--linger", type=float, default=0.3, metavar="SECONDS", help="idle time before exit")
    plans.add_options(parser)
    process.add_options(parser)


def run(options) -> int:
    if options.tool_call_parser:
        stubs.use_parsers()
    release = Release(options.release)
    life = process.Life(options.deadline, options.wait_go)
    if options.worker:
        import setproctitle

        setproctitle.setproctitle(f"sglang::tokenizer_worker:{os.getpid()}")
    receiver = Receiver(release, options, life)
    if options.loop == "uvloop":
        import uvloop

        asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    else:  # importing the engine's modules has selected uvloop
        asyncio.set_event_loop_policy(None)
    return asyncio.run(receiver.run())


class Receiver:
    """The tokenizer and its clients."""

    def __init__(self, release, options, life):
        self.release, self.options, self.life = release, options, life
        self.plan = plans.from_options(options)
        self.truth = Truth(options.truth)
        self.totals = Totals()
        self.rounds = self.plan.numbers()
        self.started: set[int] = set()
        self.waiting: set[asyncio.Task] = set()

    async def run(self) -> int:
        context = StampedAsyncContext(2)
        self.socket = socket = self.release.zmq_socket(context, zmq.PULL, self.options.bind, True)
        self.inbox = Inbox(socket, self.truth, self.report_when_settled if self.options.lockstep else None)
        skip = not self.options.detokenizer
        self.tokenizer = Tokenizer(self.release, socket, not self.options.cumulative, skip)
        self.delay = ConsumerDelay(self.options)
        endpoints = [self.options.bind]
        server = self.server()
        if server:
            endpoints.append(await server.start())
        else:
            for _ in range(self.plan.rounds_ahead):
                self.register_next_round()
            await asyncio.sleep(0)  # let every client reach its wait
        self.life.ready(*endpoints)
        while not self.life.may_go and not self.life.expired:
            await asyncio.sleep(0.005)
        if self.options.openai:
            await openai_api.wait_until_all_registered(self)
        loop = asyncio.create_task(self.tokenizer.handle_loop())
        await self.until_done(loop)
        loop.cancel()
        for task in self.waiting:
            task.cancel()
        await asyncio.gather(loop, *self.waiting, return_exceptions=True)
        if server:
            await server.stop()
        self.inbox.flush()
        failed = loop.done() and not loop.cancelled() and loop.exception()
        context.destroy(linger=0)
        self.truth.close(
            {"release": self.release.version, "frames": self.inbox.frames, "bytes": self.inbox.bytes, **vars(self.totals)}
        )
        if failed:
            raise failed
        return 3 if self.life.expired else 0

    def server(self):
        """HTTP server for clients in other processes; `None` if clients run in this one."""
        if not self.options.http:
            return None
        from .serve import Server

        return Server(self)

    async def until_done(self, loop) -> None:
        """Returns on request or, without a driver, when every client has its finish; in both cases only after an idle time without
        frames."""
        while not self.life.expired and not loop.done():
            await asyncio.sleep(0.02)
            quiet = mono_ns() - self.inbox.last_ns > self.options.linger * 1e9 and not self.socket.get(zmq.EVENTS)
            if quiet and (self.life.stopped.is_set() or (self.done and not self.life.driven)):
                break

    @property
    def done(self) -> bool:
        """Whether every client of a finite plan has ended, except those whose release never sends a finish."""
        if self.plan.rounds == 0:
            return False
        workers = self.options.worker[1] if self.options.worker else 1
        expected = self.plan.rounds * self.plan.senders * (self.plan.requests - self.plan.queued_aborts) // workers
        return self.totals.finished >= expected

    def report_when_settled(self, turns=TURNS_TO_SETTLE) -> None:
        """Prints TOOK once every client with output in the received frame has run."""
        if turns:
            asyncio.get_running_loop().call_soon(self.report_when_settled, turns - 1)
        else:
            print("TOOK", flush=True)

    def register_next_round(self) -> None:
        """Registers the requests of one more round and starts their clients."""
        number = next(self.rounds, None)
        if number is None:
            return
        for request in self.plan.round(number):
            if self.options.worker and request.index % self.options.worker[1] != self.options.worker[0]:
                continue
            obj = self.tokenizer.register(request)
            task = asyncio.create_task(self.consume(number, obj))
            self.waiting.add(task)
            task.add_done_callback(self.waiting.discard)

    def round_started(self, number: int) -> None:
        """Keeps enough rounds registered; called at a round's first output."""
        if number not in self.started:
            self.started.add(number)
            self.register_next_round()

    async def consume(self, number: int, obj) -> None:
        """One client inside this process."""
        received = Received(obj.rid)
        try:
            async for out in self.tokenizer.responses(obj):
                self.round_started(number)
                received.add(out)
                await self.delay.pause()
        finally:
            self.ended(received)

    def ended(self, received: Received) -> None:
        """Records one client's truth."""
        line = received.summary()
        self.totals.add(line)
        self.truth.write("client", **line)
        if self.options.worker:
            print("CLIENT", received.rid, flush=True)
