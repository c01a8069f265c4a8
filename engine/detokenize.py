"""`python -m engine detokenize`: a detokenizer process between scheduler and tokenizer."""

import contextlib

from . import process
from .release import Release, Settings
from .sockets import Inbox, Outbox, StampedContext
from .truth import Tally, Truth, describe, mono_ns


def add_options(parser) -> None:
    parser.add_argument("--bind", required=True, metavar="EP", help="where the detokenizer's inbox is")
    parser.add_argument("--connect", required=True, metavar="EP", help="where the tokenizer's inbox is")
    parser.add_argument("--linger", type=float, default=0.3, metavar="SECONDS", help="quiet time before it ends when told")
    process.add_options(parser)


class ToyTokenizer:
    """Token N decodes to ` tN`."""

    eos_token_id = 2
    all_special_ids = ()
    vocab_size = 1 << 20

    def __len__(self):
        return self.vocab_size

    def decode(self, ids, **_options):
        return "".join(f" t{token}" for token in ids)

    def batch_decode(self, rows, **options):
        return [self.decode(row, **options) for row in rows]


class Over(Exception):
    """Raised out of the real event loop to end it."""


def run(options) -> int:
    import setproctitle
    import zmq

    release = Release(options.release)
    life = process.Life(options.deadline, options.wait_go)
    truth = Truth(options.truth)
    setproctitle.setproctitle("sglang::detokenizer")
    zmq.Context = StampedContext  # the manager's own __init__ makes the context and both sockets
    manager = real_manager(release, options)
    inbox = Inbox(manager.recv_from_scheduler, truth)
    tally = Tally()
    outbox = Outbox("output", manager.send_to_tokenizer, truth, tally)
    dispatch = manager._request_dispatcher

    def noting_dispatch(message):
        output = dispatch(message)
        outbox.about = None if output is None else describe(output)
        return output

    manager._request_dispatcher = noting_dispatch
    # The event loop blocks in recv: a short timeout lets it look whether it is over.
    wait = manager.recv_from_scheduler.recv

    def recv_until_over(*args, **kwargs):
        while True:
            if manager.recv_from_scheduler.poll(50):
                return wait(*args, **kwargs)
            quiet = mono_ns() - inbox.last_ns > options.linger * 1e9
            if life.expired or (life.stopped.is_set() and quiet):
                raise Over

    manager.recv_from_scheduler.__dict__["recv"] = recv_until_over
    life.ready(options.bind, options.connect)
    life.wait_go()
    with contextlib.suppress(Over):
        manager.event_loop()
    inbox.flush(mono_ns())
    manager.send_to_tokenizer.close(linger=life.left_ms())
    truth.close({"release": release.version, "taken": inbox.frames, "output": tally.totals()})
    return 3 if life.expired else 0


def real_manager(release: Release, options):
    """The release's DetokenizerManager, made by its own `__init__`, with the toy tokenizer."""
    module = release.module("sglang.srt.managers.detokenizer_manager")
    settings = Settings(soft_watchdog_timeout=None, tokenizer_worker_num=1, tool_call_parser=None)
    release.replace_config_getters(module, settings)
    module.get_tokenizer = lambda *args, **kwargs: ToyTokenizer()
    ports = Settings(detokenizer_ipc_name=options.bind, tokenizer_ipc_name=options.connect)
    return module.DetokenizerManager(settings, ports)
