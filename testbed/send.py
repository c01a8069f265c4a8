"""`python -m testbed send`: a scheduler that streams the plan's requests."""

import time

from . import plan as plans
from . import process
from .release import Release
from .scheduler import Outlet, Scheduler
from .sockets import Outbox, StampedContext
from .truth import Tally, Truth


def add_options(parser) -> None:
    parser.add_argument("--connect", required=True, metavar="EP", help="endpoint for output: tokenizer or detokenizer")
    parser.add_argument("--control", metavar="EP", help="endpoint of the tokenizer for control messages (default: --connect)")
    parser.add_argument("--sender", type=int, default=0, help="index of this sender in the plan")
    parser.add_argument("--gap", type=float, default=0.0, metavar="SECONDS", help="pause between two steps")
    parser.add_argument("--detokenizer", action="store_true", help="output goes to a detokenizer")
    parser.add_argument("--worker", action="append", default=[], metavar="EP", help="inbox of a tokenizer worker; repeatable")
    parser.add_argument("--disaggregation", choices=("prefill", "decode"), help="role in a disaggregated pair of servers")
    parser.add_argument("--health-every", type=int, default=0, metavar="STEPS", help="send a health check answer after this many steps")
    parser.add_argument("--lockstep", action="store_true", help="run a step for each line `step` on standard input")
    parser.add_argument("--own-ids", action="store_true", help="no two requests of a round share a token id")
    plans.add_options(parser)
    process.add_options(parser)


def run(options) -> int:
    import setproctitle

    release = Release(options.release)
    plan = plans.from_options(options)
    life = process.Life(options.deadline, options.wait_go)
    truth = Truth(options.truth)
    setproctitle.setproctitle(f"sglang::scheduler_DP{options.sender}" if plan.senders > 1 else "sglang::scheduler")

    import zmq

    context = StampedContext(2)
    tallies = {"output": Tally(), "control": Tally()}

    def outlet(name, endpoint):
        socket = release.zmq_socket(context, zmq.PUSH, endpoint, False)
        return Outlet(release, socket, Outbox(name, socket, truth, tallies[name]))

    # As in the engine: control first, output second, on two connections even to the same endpoint.
    control = outlet("control", options.control or options.connect)
    output = outlet("output", options.connect)
    scheduler = Scheduler(release, output, control, not options.detokenizer, options.disaggregation)
    life.ready(options.connect)
    life.wait_go()
    made = 0
    for round_ in plan.numbers():
        requests = plan.requests_of(options.sender, round_)
        made += run_round(scheduler, release, plan, requests, options, life, lambda: sum(t.frames for t in tallies.values()))
        if life.over:
            break
    totals = {name: tally.totals() for name, tally in tallies.items()}
    reported = totals["output"]["tokens"]
    context.destroy(linger=life.left_ms())
    truth.close({"sender": options.sender, "release": release.version, "codec": release.codec, **totals})
    if made != reported:
        raise SystemExit(f"generated {made} tokens, but the frames report {reported}: the harness does not support this release correctly")
    return 3 if life.expired else 0


def run_round(scheduler, release, plan, requests, options, life, sent) -> int:
    """Streams one round to its end, or finishes all live requests at once on a stop. Returns the number of generated tokens."""
    waiting = list(requests)
    live = []
    step = made = 0
    while waiting or live:
        if options.lockstep:
            life.wait_step()
        while waiting and waiting[0].start_step <= step:
            wanted = waiting.pop(0)
            if wanted.end != "abort-queued":
                req = scheduler.request(wanted, options.worker)
                if options.own_ids:
                    req.first_token += wanted.index * plans.SPAN
                live.append((wanted, req))
            elif release.echoes_queued_aborts:
                scheduler.abort_queued(wanted.rid)
        for wanted, req in live:
            done = len(req.output_ids)
            count = plan.step(wanted, done)
            scheduler.grow(req, count)
            made += count
            if wanted.end == "warm-up":
                scheduler.finish(req, "warm-up")
                made -= count
            elif options.disaggregation == "prefill":
                scheduler.finish(req, "prefill")
            elif wanted.end == "abort" and done + count >= (wanted.tokens + 1) // 2:
                scheduler.finish(req, "abort")
            elif done + count >= wanted.tokens or life.over:
                scheduler.finish(req, wanted.end if wanted.end == "stop" else "length")
        if live:
            scheduler.stream_output([req for _, req in live], False)
        live = [(wanted, req) for wanted, req in live if not req.finished()]
        if life.over:
            waiting.clear()
        step += 1
        if options.health_every and step % options.health_every == 0:
            scheduler.health_check()
        if options.lockstep:
            print("STEPPED", sent(), len(live) + len(waiting), flush=True)
        if options.gap:
            time.sleep(options.gap)
    return made
