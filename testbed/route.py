"""`python -m testbed route`: the router in front of several detokenizers, or of several tokenizer workers."""

import asyncio
import contextlib

import zmq

from . import mapping, process
from .release import Release, Settings
from .sockets import Inbox, Over, StampedAsyncContext, StampedContext, end_when_over
from .truth import Tally, Truth, mono_ns

MIXIN = "sglang.srt.managers.multi_tokenizer_mixin"


def add_options(parser) -> None:
    parser.add_argument("--bind", required=True, metavar="EP", help="inbox of the router")
    parser.add_argument("--connect", action="append", metavar="EP", help="inbox of a detokenizer; repeatable")
    parser.add_argument("--tokenizers", action="store_true", help="route to the tokenizer workers named in the frames")
    parser.add_argument("--linger", type=float, default=0.3, metavar="SECONDS", help="idle time to wait for after a stop request")
    process.add_options(parser)


def run(options) -> int:
    release = Release(options.release)
    life = process.Life(options.deadline, options.wait_go)
    truth, total = Truth(options.truth), Tally()
    zmq.Context = StampedContext  # the router's code creates contexts and sockets
    module = release.module(MIXIN)
    tallies = mapping.watch(module, truth, total)
    if options.tokenizers:
        frames = asyncio.run(to_tokenizers(release, module, options, life, truth))
    else:
        frames = to_detokenizers(module, options, life, truth)
    totals = {"release": release.version, "received": frames, "output": total.totals(), "workers": mapping.totals(tallies)}
    truth.close(totals)
    return 3 if life.expired else 0


def to_detokenizers(module, options, life, truth) -> int:
    """The release's MultiDetokenizerRouter (0.5.12 and later), created by its own `__init__`."""
    import setproctitle

    setproctitle.setproctitle("sglang::detokenizer_router")
    router = module.MultiDetokenizerRouter(options.connect, Settings(detokenizer_ipc_name=options.bind))
    inbox = Inbox(router.recv_from_scheduler, truth)
    end_when_over(router.recv_from_scheduler, inbox, life, options.linger)
    life.ready(options.bind, *options.connect)
    life.wait_go()
    with contextlib.suppress(Over):
        router.event_loop()
    inbox.flush(mono_ns())
    router.socket_mapping.close(life.left_ms())
    return inbox.frames


async def to_tokenizers(release, module, options, life, truth) -> int:
    """The output path of the release's MultiTokenizerRouter, without the sockets for requests."""
    context = StampedAsyncContext(3)
    socket = release.zmq_socket(context, zmq.PULL, options.bind, True)
    inbox = Inbox(socket, truth)
    router = object.__new__(module.MultiTokenizerRouter)
    router.recv_from_detokenizer, router.socket_mapping = socket, module.SocketMapping()
    life.ready(options.bind)
    while not life.may_go and not life.expired:
        await asyncio.sleep(0.005)
    loop = asyncio.create_task(router.handle_loop())
    while not life.expired and not loop.done():
        await asyncio.sleep(0.02)
        quiet = mono_ns() - inbox.last_ns > options.linger * 1e9 and not socket.get(zmq.EVENTS)
        if quiet and life.stopped.is_set():
            break
    failed = loop.done() and loop.exception()
    loop.cancel()
    await asyncio.gather(loop, return_exceptions=True)
    inbox.flush(mono_ns())
    router.socket_mapping.close(life.left_ms())
    context.destroy(linger=0)
    if failed:
        raise failed
    return inbox.frames
