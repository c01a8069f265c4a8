"""Output of a model that calls two tools, in the form of the parsers `hermes` and `qwen25`, as tokens of a byte-level tokenizer."""

import json

WEATHER = {"city": "S\u00e3o Paulo", "note": "umbrella for the flight", "more": {"unit": "celsius"}, "place": "\u6771\u4eac tower"}
FIND = {"query": "hotel near Shibuya", "limit": {"price": 250, "currency": "yen"}}
CALLS = [("get_weather", WEATHER), ("find", FIND)]
# Arguments of each call as the model writes them.
ARGUMENTS = [json.dumps(arguments, ensure_ascii=False) for _, arguments in CALLS]


def schema(value) -> dict:
    if isinstance(value, dict):
        return {"type": "object", "properties": {key: schema(member) for key, member in value.items()}}
    return {"type": "string" if isinstance(value, str) else "integer"}


TOOLS = [
    {"type": "function", "function": {"name": name, "description": "", "parameters": schema(arguments)}} for name, arguments in CALLS
]
# Bytes of each token. Some end inside a character or a string, and one has a brace between two strings, so that an event has it inside.
PIECES = [
    *(b"I will", b" look it up.\n", b"<tool_call>", b"\n", b'{"name": "get_', b'weather", "arg', b'uments": {"city": "S\xc3'),
    *(b"\xa3o Pau", b'lo", "note": "umb', b"rella for the", b' flight", "more": {"unit": "cel', b'sius"}, "place": "\xe6\x9d\xb1'),
    *(b"\xe4\xba\xac", b' tower"}}', b"\n", b"</tool_call>", b"\n", b"<tool_call>", b"\n", b'{"name": "find", "argu'),
    *(b'ments": {"query": "hotel', b" near Shibu", b'ya", "limit": {"price": 250', b', "cur', b'rency": "yen"}}}', b"\n", b"</tool_call>"),
]
# The last token stops the request.
TOKENS = len(PIECES) + 1


def decode(places) -> str:
    """Text of the tokens at these positions of the output."""
    return b"".join(PIECES[place] for place in places if 0 <= place < len(PIECES)).decode("utf-8", "replace")


def tokens_of(call: int, begin: int, end: int) -> list[int]:
    """First and last token, counted from 1, of the characters from `begin` to before `end` of a call's arguments."""
    whole = decode(range(len(PIECES)))
    start = whole.index(ARGUMENTS[call])
    ends = [len(b"".join(PIECES[: place + 1])) for place in range(len(PIECES))]

    def token(character: int) -> int:
        at = len(whole[: start + character].encode()) + len(whole[start + character].encode())
        return next(place for place, end in enumerate(ends) if end >= at) + 1

    return [token(begin), token(end - 1)]
