"""Counts the outputs that a client receives for one request, and simulates slow clients."""

import asyncio
import queue
import threading
import time

from . import plan
from .truth import mono_ns


class Received:
    """Counts one request's outputs. An id encodes its position, so that losses and repetitions are detected in any mode."""

    def __init__(self, rid: str):
        self.rid = rid
        self.outputs = self.ids = 0
        self.places: set[int] = set()
        self.completion_tokens = None
        self.finish = None
        # Arguments of each tool call, by its index.
        self.calls: dict[int, str] = {}
        self.first_ns = self.last_ns = None

    def add(self, out: dict) -> None:
        """Adds one output of the engine."""
        now = mono_ns()
        self.first_ns = self.first_ns or now
        self.last_ns = now
        self.outputs += 1
        meta = out["meta_info"]
        self.completion_tokens = meta["completion_tokens"]
        ids = out.get("output_ids")
        if ids is not None:
            # Text frames of 0.5.1 to 0.5.4.post2 begin with ids of the prompt's tail, which are not output (docs/internals/WIRE.md).
            ids = [token for token in ids if token >= plan.FIRST_TOKEN or token == plan.STOP_TOKEN]
            self.ids += len(ids)
            last = self.completion_tokens - 1
            self.places.update(last if token == plan.STOP_TOKEN else (token - plan.FIRST_TOKEN) % plan.SPAN for token in ids)
        if meta.get("finish_reason"):
            self.finish = meta["finish_reason"]["type"]

    def add_text(self, event: dict) -> None:
        """Adds one event of an OpenAI endpoint: text in which token N is ` tN`, or the token count."""
        now = mono_ns()
        self.first_ns = self.first_ns or now
        self.last_ns = now
        self.outputs += 1
        for choice in event["choices"]:
            text = choice["text"] if "text" in choice else choice["delta"].get("content") or ""
            places = [int(word.removeprefix("t")) - plan.FIRST_TOKEN for word in text.split()]
            self.ids += len(places)
            self.places.update(places)
            self.finish = choice["finish_reason"] or self.finish
        if usage := event.get("usage"):
            self.completion_tokens = usage["completion_tokens"]

    def add_calls(self, event: dict) -> None:
        """Adds one event of a chat with tool calls."""
        self.outputs += 1
        for choice in event["choices"]:
            for call in choice["delta"].get("tool_calls") or ():
                self.calls[call["index"]] = self.calls.get(call["index"], "") + (call["function"].get("arguments") or "")
            self.finish = choice["finish_reason"] or self.finish
        if usage := event.get("usage"):
            self.completion_tokens = usage["completion_tokens"]

    def summary(self) -> dict:
        """A line of truth. `lost` is the number of missing tokens, `missing` their positions as [first, after last];
        both are null if the release gives no ids (text mode before 0.5.0rc0)."""
        total = self.completion_tokens or 0
        known = self.ids > 0 or total == 0
        missing: list[list[int]] = []
        for place in sorted(set(range(total)) - self.places) if known else ():
            if missing and missing[-1][1] == place:
                missing[-1][1] += 1
            else:
                missing.append([place, place + 1])
        return {
            "rid": self.rid,
            "outputs": self.outputs,
            "ids": self.ids,
            "distinct_ids": len(self.places),
            "completion_tokens": self.completion_tokens,
            "lost": sum(after - first for first, after in missing) if known else None,
            "missing": missing if known else None,
            "finish": self.finish,
            **({"calls": self.calls} if self.calls else {}),
            "first_ns": self.first_ns,
            "last_ns": self.last_ns,
        }


class ConsumerDelay:
    """Delays of a consumer after each output: extra event-loop turns, a switch to another thread, busy time, and stalls of the whole
    event loop."""

    def __init__(self, options):
        self.turns, self.busy_s = options.turns, options.busy
        self.stall_s, self.stall_every, self.outputs = options.stall, options.stall_every, 0
        self._futures = queue.SimpleQueue() if options.other_thread else None
        if options.other_thread:
            threading.Thread(target=self._answer, args=(asyncio.get_running_loop(),), daemon=True).start()

    def _answer(self, loop):
        while True:
            future = self._futures.get()
            loop.call_soon_threadsafe(lambda future=future: future.done() or future.set_result(None))

    async def pause(self) -> None:
        """Pauses between two outputs."""
        self.outputs += 1
        if self.stall_s and self.outputs % self.stall_every == 0:
            time.sleep(self.stall_s)
        for _ in range(self.turns):
            await asyncio.sleep(0)
        if self._futures:
            future = asyncio.get_running_loop().create_future()
            self._futures.put(future)
            await future
        if self.busy_s:
            until = time.perf_counter() + self.busy_s
            while time.perf_counter() < until:
                pass


class Totals:
    """Sums over the clients of a run. `lost` includes only clients that received ids."""

    def __init__(self):
        self.clients = self.finished = self.outputs = self.ids = self.completion_tokens = self.lost = 0
        self.clients_with_loss = self.clients_without_ids = 0

    def add(self, line: dict) -> None:
        """Adds one client's summary."""
        self.clients += 1
        self.finished += line["finish"] is not None
        self.outputs += line["outputs"]
        self.ids += line["ids"]
        self.completion_tokens += line["completion_tokens"] or 0
        self.lost += line["lost"] or 0
        self.clients_with_loss += bool(line["lost"])
        self.clients_without_ids += line["lost"] is None
