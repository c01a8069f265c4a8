"""`python -m testbed.real.tool_calls ENGINE SEED COUNT`, in a virtual environment of the engine: prints responses with tool calls, one JSON
line each. A model's output is cut into chunks at random, and passed through the engine's own streaming parser; SGLang's events are made by
its own serving class."""

import asyncio
import json
import random
import sys
from types import SimpleNamespace

from testbed.healthy import model_text

NAME = "get_weather"
TOOLS = [
    {"type": "function", "function": {"name": name, "description": "", "parameters": {"type": "object", "properties": {
        "city": {"type": "string"}, "note": {"type": "string"}, "days": {"type": "integer"}, "share": {"type": "number"},
        "exact": {"type": "boolean"}, "tags": {"type": "array", "items": {"type": "string"}}, "more": {"type": "object"}}}}}
    for name in (NAME, "find")
]
ARGUMENTS = [
    {},
    {"city": "Paris"},
    {"city": "New York", "days": 3},
    {"city": "S\u00e3o Paulo \u2603 \U0001f600", "note": "a \"b\" \\ c\n\td"},
    {"share": 1.5, "days": 12, "exact": True, "city": "Rome"},
    {"tags": ["a", "b c", "{d}"], "more": {"x": {"y": [1, 2, {"z": None}]}}, "note": ""},
    {"note": "def f(x):\n    return {'a': [x, \"}\"]}\n", "city": "x" * 60},
    {"note": "call find with {\"city\": \"Oslo\"} later", "city": "find"},
]


def xml(call, begin, end, key, value):
    name, arguments = call
    inner = "".join(key.format(k) + value.format(v if isinstance(v, str) else json.dumps(v)) for k, v in arguments.items())
    return begin.format(name) + inner + end


# The output of models for each parser: text before the calls, each call, between calls, and after them. `{n}` is the name, `{a}` the
# arguments, `{i}` the number of the call.
JSON_FORMS = {
    parser: model_text.JSON_FORMS[form]
    for parser, form in {
        "qwen25": "hermes", "hermes": "hermes", "llama3": "llama", "mistral": "mistral", "deepseekv3": "deepseek_v3",
        "deepseekv31": "deepseek_v31", "kimi_k2": "kimi_k2", "interns1": "internlm",
    }.items()
}  # fmt: skip
XML_FORMS = {
    "qwen3_coder": lambda call: xml(
        call, "<tool_call>\n<function={}>\n", "</function>\n</tool_call>", "<parameter={}>\n", "{}\n</parameter>\n"
    ),
    "glm45": lambda call: xml(
        call, "<tool_call>{}\n", "</tool_call>", "<arg_key>{}</arg_key>\n", "<arg_value>{}</arg_value>\n"
    ),
    "pythonic": lambda call: "[" + call[0] + "(" + ", ".join(f"{k}={v!r}" for k, v in call[1].items()) + ")]",
}
VLLM = {"qwen25": "hermes", "llama3": "llama3_json", "deepseekv3": "deepseek_v3", "deepseekv31": "deepseek_v31", "interns1": "internlm"}


def output(parser, pick):
    """A model's output, and its calls."""
    calls = [(pick.choice((NAME, "find")), pick.choice(ARGUMENTS)) for _ in range(pick.choice((1, 1, 1, 2, 3)))]
    lead = pick.choice(("", "", "I will look it up.\n", f"Use {NAME} for that.\n"))
    if parser in XML_FORMS:
        return lead + "\n".join(map(XML_FORMS[parser], calls)), calls
    style = pick.choice(("spaced", "spaced", "compact", "indented", "ascii"))
    before, form, between, after = JSON_FORMS[parser]
    texts = [
        form.replace("%n", name).replace("%i", str(i)).replace("%a", model_text.written(arguments, style))
        for i, (name, arguments) in enumerate(calls)
    ]
    return lead + before + between.join(texts) + after, calls


class Sglang:
    def __init__(self):
        from sglang.srt.entrypoints.openai import protocol, serving_chat
        from sglang.srt.function_call.function_call_parser import FunctionCallParser

        self.serving, self.protocol = serving_chat.OpenAIServingChat, protocol
        self.parsers = [name for name in (*JSON_FORMS, *XML_FORMS) if name in FunctionCallParser.ToolCallParserEnum]

    async def respond(self, parser, chunks, finish):
        import inspect

        serving = self.serving.__new__(self.serving)
        serving.tool_call_parser = parser
        serving.tokenizer_manager = SimpleNamespace(tokenizer=None, server_args=SimpleNamespace(tool_call_parser=parser))
        request = self.protocol.ChatCompletionRequest(
            model="m", messages=[{"role": "user", "content": "go"}], tools=TOOLS, tool_choice="auto", stream=True
        )
        parsers, has_calls, events = {}, {}, []
        stream = serving._process_tool_call_stream
        known = inspect.signature(stream).parameters
        for at, chunk in enumerate(chunks):
            last = at + 1 == len(chunks)
            content = {"text": "".join(chunks[: at + 1]), "meta_info": {"id": "r", "finish_reason": {"type": finish} if last else None}}
            more = {"created": 1} if "created" in known else {}
            if "flush" in known:
                more["flush"] = last
            async for event in stream(0, chunk, parsers, content, request, has_calls, **more):
                events.append(event)
            if last and has_calls.get(0):
                more = {"created": 1} if "created" in inspect.signature(serving._check_for_unstreamed_tool_args).parameters else {}
                if rest := serving._check_for_unstreamed_tool_args(parsers[0], content, request, 0, **more):
                    events.append(rest)
        return [event.removeprefix("data: ").strip() for event in events]


class Vllm:
    def __init__(self):
        from pathlib import Path

        from transformers import AutoTokenizer
        from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
        from vllm.tool_parsers.abstract_tool_parser import ToolParserManager

        self.request = ChatCompletionRequest(messages=[{"role": "user", "content": "go"}], tools=TOOLS, model="m", stream=True)
        self.tokenizer = AutoTokenizer.from_pretrained(Path.home() / ".cache/tokengap/vllm/model")
        markers = {w for f in JSON_FORMS.values() for part in (f[0], f[1], f[3]) for w in __import__("re").findall(r"<[^<>\s]+>", part)}
        self.tokenizer.add_tokens(sorted(markers | {"[TOOL_CALLS]", "<tool_call>", "</tool_call>", "<|plugin|>", "<|python_tag|>"}))
        self.manager = ToolParserManager
        self.parsers = [name for name in (*JSON_FORMS, *XML_FORMS) if VLLM.get(name, name) in self.manager.list_registered()]

    async def respond(self, parser, chunks, finish):
        parser = self.manager.get_tool_parser(VLLM.get(parser, parser))(self.tokenizer, self.request.tools)
        text, ids, events = "", [], []
        for chunk in chunks:
            new = self.tokenizer.encode(chunk, add_special_tokens=False)
            delta = parser.extract_tool_calls_streaming(text, text + chunk, chunk, ids, ids + new, new, self.request)
            text, ids = text + chunk, ids + new
            if delta is not None:
                delta = delta.model_dump(exclude_unset=True)
                events.append(json.dumps({"id": "r", "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}))
        return events


def main(engine, seed, count):
    engine = {"sglang": Sglang, "vllm": Vllm}[engine]()
    pick = random.Random(int(seed))
    for n in range(int(count)):
        parser = engine.parsers[n % len(engine.parsers)]
        text, calls = output(parser, pick)
        chunks, finish = model_text.pieces_of(text, pick, (1, 3, 6, 6, 20)), "stop"
        if pick.random() < 0.25:
            chunks, finish = chunks[: pick.randint(1, len(chunks))], "length"
        try:
            events = asyncio.run(engine.respond(parser, chunks, finish))
        except Exception as error:
            print(parser, repr(error), file=sys.stderr)
            continue
        print(json.dumps({"parser": parser, "chunks": chunks, "finish": finish, "calls": [arguments for _name, arguments in calls], "events": events}))


if __name__ == "__main__":
    main(*sys.argv[1:])
