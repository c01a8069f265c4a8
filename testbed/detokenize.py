"""`python -m testbed detokenize`: a detokenizer process between scheduler and tokenizer."""

import contextlib

from . import call_text, mapping, plan, process
from .release import Release, Settings
from .sockets import Inbox, Outbox, Over, StampedContext, end_when_over
from .truth import Tally, Truth, describe, mono_ns


def add_options(parser) -> None:
    parser.add_argument("--bind", required=True, metavar="EP", help="inbox of the detokenizer")
    parser.add_argument("--connect", required=True, action="append", metavar="EP", help="inbox of a tokenizer; repeat for each worker")
    parser.add_argument("--linger", type=float, default=0.3, metavar="SECONDS", help="idle time to wait for after a stop request")
    plan.add_options(parser)
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


class CallTokenizer(ToyTokenizer):
    """Tokens of an output with tool calls."""

    def decode(self, ids, **_options):
        return call_text.decode(token - plan.FIRST_TOKEN for token in ids)


def run(options) -> int:
    import setproctitle
    import zmq

    release = Release(options.release)
    life = process.Life(options.deadline, options.wait_go)
    truth = Truth(options.truth)
    setproctitle.setproctitle("sglang::detokenizer")
    zmq.Context = StampedContext  # the manager's __init__ creates the context and both sockets
    tally, tallies, alone = Tally(), {}, len(options.connect) == 1
    if not alone:
        tallies = mapping.watch(release.module("sglang.srt.managers.multi_tokenizer_mixin"), truth, tally)
    manager = real_manager(release, options)
    inbox = Inbox(manager.recv_from_scheduler, truth)
    if alone:
        note_output(manager, truth, tally)
    end_when_over(manager.recv_from_scheduler, inbox, life, options.linger)
    life.ready(options.bind, *options.connect)
    life.wait_go()
    with contextlib.suppress(Over):
        manager.event_loop() if alone else manager.multi_http_worker_event_loop()
    inbox.flush(mono_ns())
    if alone:
        manager.send_to_tokenizer.close(linger=life.left_ms())
    else:
        manager.socket_mapping.close(life.left_ms())
    totals = {"release": release.version, "received": inbox.frames, "output": tally.totals(), "workers": mapping.totals(tallies)}
    truth.close(totals)
    return 3 if life.expired else 0


def note_output(manager, truth, tally) -> None:
    """Truth of the manager's only socket."""
    outbox = Outbox("output", manager.send_to_tokenizer, truth, tally)
    dispatch = manager._request_dispatcher

    def recording_dispatch(message):
        output = dispatch(message)
        outbox.about = None if output is None else describe(output)
        return output

    manager._request_dispatcher = recording_dispatch


def real_manager(release: Release, options):
    """The release's DetokenizerManager, created by its own `__init__`, with a tokenizer of the harness."""
    module = release.module("sglang.srt.managers.detokenizer_manager")
    settings = Settings(soft_watchdog_timeout=None, tokenizer_worker_num=len(options.connect), tool_call_parser=None)
    release.replace_config_getters(module, settings)
    tokenizer = CallTokenizer() if options.text == "calls" else ToyTokenizer()
    module.get_tokenizer = lambda *args, **kwargs: tokenizer
    ports = Settings(detokenizer_ipc_name=options.bind, tokenizer_ipc_name=options.connect[0])
    return module.DetokenizerManager(settings, ports)
