"""`python -m testbed dynamo.worker`: a Dynamo worker around the tokenizer process."""

import asyncio
import inspect
import os
import sys
import tempfile

from .. import plan as plans
from .. import process, receive
from ..consumer import Received
from ..release import Release
from . import model
from .release import Dynamo

# Log line for each request from 1.6 on, in the release's generate(), which this module replaces.
SUBMITTED = "Submitted SGLang Request ID: %s, Context: %s"


def add_options(parser) -> None:
    parser.add_argument("--dynamo", required=True, metavar="RELEASE", help="Dynamo release")
    parser.add_argument("--model", action="store_true", help="register a model, for a frontend")
    parser.add_argument("--fail-at", type=int, metavar="N", help="every generator fails before its Nth output")
    parser.add_argument("--say-ids", action="store_true", help="log SGLang's id of each request, like the release's generate()")
    parser.add_argument("--pad", type=int, default=0, metavar="BYTES", help="extra text in each output")
    receive.add_options(parser)


def run(options) -> int:
    release = Release(options.release)
    life = process.Life(options.deadline, options.wait_go)
    import uvloop

    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    status = asyncio.run(Worker(release, options, life).run())
    # Skip interpreter shutdown, because the runtime's threads may still call into it.
    sys.stdout.flush()
    os._exit(status)


class Worker(receive.Receiver):
    """A receiver whose clients are response streams. Prints HOLDS when the plan's requests have arrived."""

    def server(self):
        self.held = 0
        self.dynamo = Dynamo(self.options.dynamo, self.release)
        self.handler = self.dynamo.handler()
        if self.options.say_ids and SUBMITTED not in inspect.getsource(inspect.getmodule(type(self.handler))):
            raise SystemExit(f"{self.options.dynamo} does not log {SUBMITTED!r}")
        return self

    async def start(self) -> str:
        """Starts serving, and registers the model, if any."""
        endpoint = self.dynamo.endpoint(self.dynamo.connect(asyncio.get_running_loop()))
        self.serving = asyncio.ensure_future(endpoint.serve_endpoint(self.generate))
        if self.options.model:
            self.folder = tempfile.TemporaryDirectory()
            model.write(self.folder.name)
            await self.dynamo.register(endpoint, self.folder.name)
        return "dynamo.backend.generate"

    async def stop(self) -> None:
        """Does nothing: the runtime's threads exit with the process."""
        self.serving.cancel()

    async def generate(self, request, context):
        """Passes one request through the release's handler, from the request plane to the response plane."""
        rid = request_id(context)
        obj = self.tokenizer.register(plans.Request(rid, index=0, tokens=0, start_step=0, stream=True, group=None, end="length"))
        received = Received(rid)
        if self.options.say_ids:
            print(SUBMITTED % (rid, context.id()), file=sys.stderr, flush=True)
        self.held += 1
        if self.held == self.plan.senders * self.plan.requests:
            print("HOLDS", self.held, flush=True)
        try:
            async for chunk in self.handler._process_token_stream(self.outputs(obj, received), context):
                if self.options.pad:
                    chunk["text"] = "x" * self.options.pad
                yield chunk
        finally:
            self.ended(received)

    async def outputs(self, obj, received):
        """Yields the outputs, like `engine.async_generate`."""
        async for out in self.tokenizer.responses(obj):
            if received.outputs + 1 == self.options.fail_at:
                raise RuntimeError("failure requested by --fail-at")
            received.add(out)
            yield out
            await self.delay.pause()


def request_id(context) -> str:
    """The trace id, as in releases 0.8.0 to 1.5.0. Without one, it is derived from the context's id, so that the plan's scheduler and this
    worker agree."""
    return getattr(context, "trace_id", None) or context.id().replace("-", "")


