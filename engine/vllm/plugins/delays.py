"""A plugin that vLLM loads in each of its processes. `SLOW_OUTPUT_MS`: CPU milliseconds that the API server spends on each output."""

import os
import time


def register():
    delay = float(os.environ.get("SLOW_OUTPUT_MS", "0")) / 1e3
    if not delay:
        return
    from vllm.v1.engine.output_processor import OutputProcessor

    process_outputs = OutputProcessor.process_outputs

    def slow(self, outputs, *args, **options):
        until = time.monotonic() + delay * len(outputs)
        while time.monotonic() < until:
            pass
        return process_outputs(self, outputs, *args, **options)

    OutputProcessor.process_outputs = slow
