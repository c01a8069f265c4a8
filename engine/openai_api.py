"""`/v1/completions` and `/v1/chat/completions` with the release's serving classes. Chat templates and prompts are skipped; responses are
generated and written by the unmodified `_handle_streaming_request`."""

import asyncio

from . import plan
from .release import Settings

PREFIX = "sglang.srt.entrypoints.openai."


class Manager:
    """The part of a TokenizerManager that the serving classes use, with the harness's outputs."""

    tokenizer = None
    served_model_name = "engine"
    request_logger = Settings()

    def __init__(self, receiver):
        self.receiver = receiver
        self.server_args = self.receiver.tokenizer.manager.server_args
        self.model_config = Settings(get_default_sampling_params=dict, hf_config=Settings(architectures=[]))

    def config_value(self, name):
        return getattr(self.server_args, name)

    def create_abort_task(self, _obj):
        """Returns no task, so that the request of a client that left continues."""
        return None

    async def generate_request(self, obj, http_request=None):
        """The real `_wait_one_response`, at the consumer's pace."""
        async for out in self.receiver.tokenizer.responses(obj, http_request):
            yield out
            await self.receiver.delay.pause()


def routes(app, receiver) -> None:
    """Adds both endpoints to a FastAPI application."""
    release = receiver.release
    manager = Manager(receiver)
    protocol = release.module(PREFIX + "protocol")
    for path, module, class_, body in (
        ("/v1/completions", "serving_completions", "OpenAIServingCompletion", protocol.CompletionRequest),
        ("/v1/chat/completions", "serving_chat", "OpenAIServingChat", protocol.ChatCompletionRequest),
    ):
        module = release.module(PREFIX + module)
        release.replace_config_getters(module, manager.server_args)
        serving = serving_of(getattr(module, class_), manager)
        app.post(path, response_model=None)(endpoint(serving, body))


def serving_of(real, manager):
    """The real class, except for the conversion of a request to the engine's request type."""

    class Serving(real):
        def _convert_to_internal_request(self, request, _raw_request=None, *_ignored):
            wanted = plan.Request(request.rid, index=0, tokens=0, start_step=0, stream=True, group=None, end="length")
            return manager.receiver.tokenizer.register(wanted), request

    return Serving(manager, Settings())


def endpoint(serving, body):
    from fastapi import Request

    async def serve(request: body, http_request: Request):
        return await serving.handle_request(request, http_request)

    return serve


async def wait_until_all_registered(receiver) -> None:
    """Waits until all requests are registered. The server does it, because a client of these endpoints gets no response before its first
    output."""
    expected = receiver.plan.senders * receiver.plan.requests * receiver.plan.rounds
    while len(receiver.tokenizer.manager.rid_to_state) < expected and not receiver.life.expired:
        await asyncio.sleep(0.005)
