"""Faults in responses with tool calls that a server, its parser or a proxy could have."""

import json


def arguments(event: str) -> tuple[int, str]:
    """Index of the event's tool call and its part of the arguments; an empty part if the event has none."""
    if event.startswith("data: {"):
        for choice in json.loads(event[6:])["choices"]:
            for call in choice.get("delta", {}).get("tool_calls") or ():
                return call["index"], (call.get("function") or {}).get("arguments") or ""
    return -1, ""


def rewritten(event: str, change) -> str:
    """The event with other arguments."""
    body = json.loads(event[6:])
    function = body["choices"][0]["delta"]["tool_calls"][0]["function"]
    function["arguments"] = change(function["arguments"])
    return f"data: {json.dumps(body, ensure_ascii=False)}\n\n"


async def third_part(events, then):
    """Replaces the third event with arguments of the first call by the events that `then` returns for it and the next such event."""
    parts, held = 0, None
    async for event in events:
        index, text = arguments(event)
        parts += index == 0 and bool(text)
        if parts == 3 and not held:
            held = event
        elif parts == 4 and held:
            for other in then(held, event):
                yield other
            parts, held = 5, None
        else:
            yield event


async def changed(events, has, change):
    """Changes the arguments of the first event that `has` the fault's text."""
    done = False
    async for event in events:
        if not done and has(arguments(event)[1]):
            done, event = True, rewritten(event, change)
        yield event


async def without_second_call(events):
    async for event in events:
        if arguments(event)[0] != 1:
            yield event


async def joined(events):
    """Writes three events at a time, as a buffering proxy does."""
    held = []
    async for event in events:
        held.append(event)
        if len(held) == 3:
            yield "".join(held)
            held = []
    yield "".join(held)


def incomplete(text: str) -> str:
    return "".join(char if char.isascii() else "\ufffd" for char in text)


FAULTS = {
    "join": joined,
    "call-drop": lambda events: third_part(events, lambda _event, after: [after]),
    "call-repeat": lambda events: third_part(events, lambda event, after: [event, event, after]),
    "call-swap": lambda events: third_part(events, lambda event, after: [after, event]),
    "call-eat": lambda events: changed(events, lambda text: "}" in text[1:-1], lambda text: text.replace("}", "", 1)),
    "call-cut": lambda events: changed(events, lambda text: not text.isascii(), incomplete),
    "call-omit": without_second_call,
}
