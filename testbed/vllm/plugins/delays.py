"""A plugin that vLLM loads in each of its processes.

`SLOW_OUTPUT_MS`: CPU milliseconds that the API server spends on each output. `LOST`: file for the omitted outputs; the API server omits
every 40th one of a request before its serving code, and writes a line for each: request id and number of tokens. `SCRIPT`, which the
executor reads: a chat has the fault of `testbed/call_faults.py` that its message names.
"""

import json
import os
import time

EVERY = 40


def register():
    delay = float(os.environ.get("SLOW_OUTPUT_MS", "0")) / 1e3
    if delay:
        make_slow(delay)
    if "LOST" in os.environ:
        make_lossy(os.environ["LOST"])
    if "SCRIPT" in os.environ:
        from testbed.vllm.calls import faulty

        faulty()


def make_slow(delay):
    from vllm.v1.engine.output_processor import OutputProcessor

    process_outputs = OutputProcessor.process_outputs

    def slow(self, outputs, *args, **options):
        until = time.monotonic() + delay * len(outputs)
        while time.monotonic() < until:
            pass
        return process_outputs(self, outputs, *args, **options)

    OutputProcessor.process_outputs = slow


def make_lossy(path):
    from vllm.v1.engine.async_llm import AsyncLLM

    generate = AsyncLLM.generate

    async def lossy(self, *args, **options):
        number = 0
        async for output in generate(self, *args, **options):
            number += 1
            if number % EVERY or output.finished:
                yield output
                continue
            tokens = sum(len(choice.token_ids) for choice in output.outputs)
            with open(path, "a") as file:
                file.write(json.dumps({"id": output.request_id, "tokens": tokens}) + "\n")

    AsyncLLM.generate = lossy
