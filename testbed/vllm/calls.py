"""Chats with tool calls, by vLLM's own serving code and parser, and faults in their events."""

import asyncio
import json
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

from .. import call_faults, call_text
from ..e2e.calls import compare
from ..e2e.checks import Checks

FLAGS = ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
CHATS = 8
# Adds tokens: the markers of calls, and one with a brace inside. Prints the ids of the output.
PREPARE = """
import json, sys
from transformers import AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
tokenizer.add_tokens(["<tool_call>", "</tool_call>", 'sius"}, "'])
tokenizer.save_pretrained(sys.argv[1])
print(json.dumps(tokenizer.encode(sys.argv[2], add_special_tokens=False)))
"""


def prepare(python: Path, model: Path, folder: Path) -> tuple[Path, dict[str, str]]:
    """A copy of the model whose tokenizer knows the markers, and the environment of an engine that generates the calls."""
    copy = folder / "model"
    shutil.copytree(model, copy)
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | {"vocab_size": config["vocab_size"] + 64}))
    output = call_text.decode(range(len(call_text.PIECES)))
    made = subprocess.run([python, "-c", PREPARE, copy, output], check=True, capture_output=True, text=True)
    return copy, {"SCRIPT": made.stdout.splitlines()[-1]}


def faulty() -> None:
    """Makes the server damage the events of chats whose message names a fault. Called by a plugin inside of it."""
    from vllm.entrypoints.openai.chat_completion.serving import OpenAIServingChat

    generate = OpenAIServingChat.chat_completion_stream_generator

    def damaged(self, request, *args, **options):
        events = generate(self, request, *args, **options)
        damage = call_faults.FAULTS.get(request.messages[0]["content"])
        return damage(events) if damage else events

    OpenAIServingChat.chat_completion_stream_generator = damaged


def chats(url: str, truth: Path, message: str) -> None:
    """Requests some chats at once, and writes the arguments of each response."""
    import aiohttp

    body = {"model": "m", "stream": True, "max_tokens": 500, "tools": call_text.TOOLS}
    body["messages"] = [{"role": "user", "content": message}]

    async def one(session):
        calls: dict[str, str] = {}
        async with session.post(f"{url}/v1/chat/completions", json=body) as response:
            async for line in response.content:
                if not line.startswith(b"data: {"):
                    continue
                event = json.loads(line[6:])
                for call in event["choices"][0]["delta"].get("tool_calls") or ():
                    index = str(call["index"])
                    calls[index] = calls.get(index, "") + (call["function"].get("arguments") or "")
        return {"id": event["id"], "calls": calls}

    async def every():
        async with aiohttp.ClientSession() as session:
            return await asyncio.gather(*(one(session) for _ in range(CHATS)))

    truth.write_text("".join(json.dumps(one) + "\n" for one in asyncio.run(every())))


def differences(report: dict, truth: list[dict], fault: str | None) -> list[str]:
    """Differences between the reported tool calls and the clients' arguments."""
    checks, clients = Checks(), {line["id"]: line["calls"] for line in truth}
    for line in lines(report):
        line["rid"] = shown(line["rid"])
    print(f"        {compare(checks, report, clients, fault)}")
    return checks.failed


def unjudged(report: dict, truth: list[dict], reason: str) -> list[str]:
    """Differences from a report that judges no tool call, for this reason."""
    checks = Checks()
    checks.equal("responses with tool calls", sorted(line["id"] for line in truth), sorted(shown(line["rid"]) for line in lines(report)))
    counts = Counter((line["outcome"], line["reason"], line["by"]) for line in lines(report))
    checks.equal("outcomes", {("unjudged", reason, None): len(truth)}, dict(counts))
    checks.equal("reasons", {reason: len(truth)}, (report.get("tool_calls") or {}).get("unjudged_by_reason"))
    checks.equal("findings", [], [finding["kind"] for finding in report["findings"] if finding["kind"] == "damaged-tool-calls"])
    return checks.failed


def lines(report: dict) -> list[dict]:
    return (report.get("tool_calls") or {}).get("lines", [])


def shown(rid: str) -> str:
    """Id that the client sees: without the eight digits that the server adds."""
    return rid.rsplit("-", 1)[0] if rid.count("-") > 1 else rid


if __name__ == "__main__":
    chats(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
