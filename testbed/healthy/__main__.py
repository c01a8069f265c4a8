"""`python -m testbed.healthy ENGINE VERSION SEED COUNT`, with the interpreter of an environment in which the engine's serving code can be
imported: prints healthy responses, one JSON line each. ENGINE_SOURCES is the folder of the unpacked releases of SGLang.

A line has the `parsers`, the arguments of each choice's `calls`, and the `steps` in their order: a chunk of a frame (request id, text, number
of tokens, finish reason, number of tokens so far), or text that the server writes."""

import asyncio
import json
import logging
import random
import signal
import sys

from . import model_text
from .case import Case


# Limit of the CPU time of a response: some outputs keep a parser busy for ever.
PATIENCE_S = 10


def expired(*_):
    raise TimeoutError("the parser did not end")


def engine_of(name, version):
    if name == "sglang":
        from .sglang import Sglang

        return Sglang(version)
    from .vllm import Vllm

    return Vllm(version)


def main(name, version, seed, count):
    engine = engine_of(name, version)
    pick = random.Random(f"{name} {version} {seed}")
    failures = {}
    # Serving classes log what they cannot parse.
    logging.disable(logging.CRITICAL)
    signal.signal(signal.SIGVTALRM, expired)
    loop = asyncio.new_event_loop()
    for n in range(int(count)):
        case = Case(name, engine, n, pick)
        try:
            signal.setitimer(signal.ITIMER_VIRTUAL, PATIENCE_S)
            steps = loop.run_until_complete(engine.respond(case))
            if failed := [step for step in steps if isinstance(step, str) and step.startswith('data: {"error"')]:
                raise ValueError(failed[0])
        except Exception as error:  # An output that the release's parser does not survive.
            key = (case.tool, case.reasoning, repr(error)[:160])
            failures[key] = failures.get(key, 0) + 1
            continue
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        line = {"parsers": case.parsers(), "stream": case.stream, "exact": case.exact, "rids": case.rids, "calls": case.calls, "steps": steps}
        print(json.dumps(line, ensure_ascii=False))
    for (tool, reasoning, error), times in failures.items():
        print(f"{name} {version}: {times} not served with {tool}, {reasoning}: {error}", file=sys.stderr)


if __name__ == "__main__":
    main(*sys.argv[1:])
