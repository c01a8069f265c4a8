"""`/generate` over HTTP, in the format of SGLang's endpoint (server-sent events, `data: [DONE]` at the end)."""

import asyncio
import contextlib
import dataclasses
import socket
import subprocess
import tempfile
from pathlib import Path

import orjson
import uvicorn
from fastapi import FastAPI, Request
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.responses import StreamingResponse

from . import openai_api, plan
from .consumer import Received


@dataclasses.dataclass
class Wanted:
    """Body of a request: a subset of the engine's GenerateReqInput, and the number of padding bytes per event."""

    rid: str
    stream: bool = True
    pad: int = 0


@contextlib.contextmanager
def self_signed():
    """Files of a new key and its certificate."""
    with tempfile.TemporaryDirectory() as folder:
        key, certificate = Path(folder, "key.pem"), Path(folder, "certificate.pem")
        command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1 -subj /CN=localhost".split()
        subprocess.run([*command, "-keyout", key, "-out", certificate], check=True, capture_output=True)
        yield key, certificate


class Http2Server:
    """Granian inside this process, with the settings of SGLang's `--enable-http2`."""

    def __init__(self, app, tls: bool):
        from granian.constants import HTTPModes, Interfaces
        from granian.server.embed import Server

        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.scheme = "https" if tls else "http"
        settings = dict(target=app, address="127.0.0.1", port=self.port, interface=Interfaces.ASGI, http=HTTPModes.auto)
        # Granian reads the files when it starts.
        self.files = contextlib.ExitStack()
        key, certificate = self.files.enter_context(self_signed()) if tls else (None, None)
        self.server = Server(ssl_key=key, ssl_cert=certificate, **settings)

    async def start(self) -> str:
        self.task = asyncio.create_task(self.server.serve())
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", self.port)
            except OSError:
                await asyncio.sleep(0.02)
                continue
            writer.close()
            return f"{self.scheme}://127.0.0.1:{self.port}"

    async def stop(self) -> None:
        self.server.stop()
        await self.task
        self.files.close()


class Server:
    """Serves the receiver's tokenizer on a free port of 127.0.0.1."""

    def __init__(self, receiver):
        self.receiver = receiver
        app = FastAPI()
        app.post("/generate")(self.generate)
        if receiver.options.openai:
            openai_api.routes(app, receiver)
        if receiver.options.middleware:
            # Each piece of a response passes through a queue to another task, which adds event-loop turns.
            app.add_middleware(BaseHTTPMiddleware, dispatch=lambda request, call_next: call_next(request))
        if receiver.options.http2:
            self.server = Http2Server(app, receiver.options.tls)
            return
        self.scheme = "https" if receiver.options.tls else "http"
        config = uvicorn.Config(app, log_level="error", lifespan="off")
        if receiver.options.tls:
            with self_signed() as (config.ssl_keyfile, config.ssl_certfile):
                config.load()
        self.server = uvicorn.Server(config)
        self.server.install_signal_handlers = lambda: None

    async def start(self) -> str:
        """Opens the port and returns its URL."""
        if self.receiver.options.http2:
            return await self.server.start()
        listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
        # `_serve` does not replace the harness's SIGTERM handler, unlike `serve`.
        self.task = asyncio.create_task(self.server._serve([listener]))
        while not self.server.started:
            await asyncio.sleep(0.005)
        return f"{self.scheme}://127.0.0.1:{listener.getsockname()[1]}"

    async def stop(self) -> None:
        """Closes the port and its connections."""
        if self.receiver.options.http2:
            return await self.server.stop()
        self.server.should_exit = self.server.force_exit = True
        await self.task

    async def generate(self, wanted: Wanted, http_request: Request):
        receiver = self.receiver
        request = plan.Request(wanted.rid, index=0, tokens=0, start_step=0, group=None, stream=wanted.stream, end="length")
        obj = receiver.tokenizer.register(request)

        async def events():
            received = Received(obj.rid)
            try:
                async for out in receiver.tokenizer.responses(obj, http_request):
                    received.add(out)
                    if wanted.pad:
                        out = {**out, "pad": "." * wanted.pad}
                    yield b"data: " + orjson.dumps(out, option=orjson.OPT_NON_STR_KEYS, default=list) + b"\n\n"
                    await receiver.delay.pause()
                yield b"data: [DONE]\n\n"
            finally:
                receiver.ended(received)

        return StreamingResponse(events(), media_type="text/event-stream")
