"""`/v1/completions` and `/v1/chat/completions` with the release's serving classes. Chat templates and prompts are skipped; responses are
generated and written by the unmodified `_handle_streaming_request`."""

import asyncio

import orjson

from . import call_faults, plan
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
        self.server_args.tool_call_parser = receiver.options.tool_call_parser
        self.model_config = Settings(get_default_sampling_params=dict, hf_config=Settings(architectures=[]))
        self.server_args.get_hf_config = lambda: self.model_config.hf_config

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
        app.post(path, response_model=None)(endpoint(serving, body, receiver.options.fault))


def serving_of(real, manager):
    """The real class, except for the conversion of a request to the engine's request type."""

    class Serving(real):
        def _convert_to_internal_request(self, request, _raw_request=None, *_ignored):
            wanted = plan.Request(request.rid, index=0, tokens=0, start_step=0, stream=True, group=None, end="length")
            return manager.receiver.tokenizer.register(wanted), request

    return Serving(manager, Settings())


def endpoint(serving, body, fault: str | None):
    from fastapi import Request

    async def serve(request: body, http_request: Request):
        response = await serving.handle_request(request, http_request)
        if fault:
            response.body_iterator = FAULTS[fault](response.body_iterator)
        return response

    return serve


def has_text(event: str) -> bool:
    if not event.startswith("data: {"):
        return False
    return any(choice.get("text") or choice.get("delta", {}).get("content") for choice in orjson.loads(event[6:])["choices"])


async def third_text(events, then):
    """Replaces the third event with text by the events that `then` returns for it."""
    texts = 0
    async for event in events:
        texts += has_text(event)
        if texts == 3 and has_text(event):
            for other in then(event):
                yield other
        else:
            yield event


async def swapped(events):
    """Exchanges the third event with text and the following event."""
    texts, held = 0, None
    async for event in events:
        texts += has_text(event)
        if texts == 3 and has_text(event):
            held = event
            continue
        yield event
        if held:
            yield held
            held = None


# Faults of a server that the client or the serving code could have.
FAULTS = {
    "drop": lambda events: third_text(events, lambda _event: []),
    "repeat": lambda events: third_text(events, lambda event: [event, event]),
    "eat": lambda events: third_text(events, lambda event: [event.replace(" t", " ", 1)]),
    "swap": swapped,
} | call_faults.FAULTS


async def wait_until_all_registered(receiver) -> None:
    """Waits until all requests are registered. The server does it, because a client of these endpoints gets no response before its first
    output."""
    expected = receiver.plan.senders * receiver.plan.requests * receiver.plan.rounds
    while len(receiver.tokenizer.manager.rid_to_state) < expected and not receiver.life.expired:
        await asyncio.sleep(0.005)
