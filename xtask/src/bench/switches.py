"""A context switch of an unrelated process while `attach` watches no engine, one or eight idle ones. Every round measures each."""

import tempfile
import time
from contextlib import ExitStack

from attach import Engine, Kit
from common import Process, attached, compile_c, median, result, root, tokengap

ENGINES = (0, 1, 8)
ROUND_TRIPS, REPETITIONS = 20_000, 10
# An attach reads files of its engines after it has attached.
SETTLING_SECONDS = 1


def cost(switching, program, engines):
    """Nanoseconds of a context switch while these engines are watched."""
    with ExitStack() as stack:
        if engines:
            attach = stack.enter_context(attached(program, *(word for engine in engines for word in engine.flags)))
            stack.callback(attach.interrupt)
        time.sleep(SETTLING_SECONDS)
        return median(float(switching.ask(ROUND_TRIPS)) for _ in range(REPETITIONS))


def run(quick):
    root()
    program, rounds = tokengap(), 3 if quick else 12
    with ExitStack() as stack:
        folders = [stack.enter_context(tempfile.TemporaryDirectory()) for _ in range(2)]
        kit, switch = Kit(folders[0]), compile_c("switch.c", folders[1])
        engines = [stack.enter_context(Engine(kit)) for _ in range(max(ENGINES))]
        switching = stack.enter_context(Process(switch))
        costs = [[cost(switching, program, engines[:count]) for count in ENGINES] for _ in range(rounds)]
    for count, of_count in zip(ENGINES, zip(*costs)):
        print(f"{count} engines: {median(of_count):.0f} ns a context switch, {min(of_count):.0f}..{max(of_count):.0f}")
    ratios = [[with_engines / none for with_engines in others] for none, *others in costs]
    one, eight = (median(of_count) for of_count in zip(*ratios))
    result("attach.switch", eight, one_engine=one)
