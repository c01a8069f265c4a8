"""Makes a server omit every 40th event with text from its chats, and write each omission to the file in `LOST`: request and tokens.

Needs clients that ask for continuous usage, which has the number of tokens up to each event.
"""

import importlib.abc
import importlib.machinery
import json
import os
import sys

MODULE = "sglang.srt.entrypoints.openai.serving_chat"
EVERY = 40


def lossy(generate):
    async def events(self, *arguments):
        texts = before = 0
        async for event in generate(self, *arguments):
            body = json.loads(event[6:]) if event.startswith("data: {") else {}
            if not any(choice["delta"].get("content") for choice in body.get("choices", [])):
                yield event
                continue
            texts += 1
            tokens = body["usage"]["completion_tokens"]
            if texts % EVERY:
                yield event
            else:
                with open(os.environ["LOST"], "a") as file:
                    file.write(json.dumps({"rid": body["id"], "tokens": tokens - before}) + "\n")
            before = tokens

    return events


class Finder(importlib.abc.MetaPathFinder):
    """Replaces the generator of chat events after its module has been imported."""

    def find_spec(self, name, path, target=None):
        if name != MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            serving = module.OpenAIServingChat
            serving._generate_chat_stream = lossy(serving._generate_chat_stream)

        spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, Finder())
