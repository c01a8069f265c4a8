"""One request of the corpus: its parsers and options, and the chunks that the engine generates."""

from . import model_text

STOP = "\n\nUser:"


class Case:
    def __init__(self, engine_name, engine, number, pick):
        self.pick = pick
        # Every tool-call parser in turn, and every reasoning parser beside them.
        self.chat = number % 8 != 0
        self.tool = engine.tools[number % len(engine.tools)] if self.chat and pick.random() < 0.9 else None
        self.reasoning = pick.choice(engine.reasoning) if self.chat and pick.random() < 0.4 else None
        self.stream = pick.random() < 0.75
        self.n = pick.choice((1, 1, 1, 1, 2, 3))
        self.logprobs = pick.random() < 0.15
        self.usage = pick.choice((None, None, "final", "continuous"))
        self.choice = pick.choice(("auto",) * 7 + ("none", None))
        self.separate = pick.random() < 0.85
        self.stream_reasoning = pick.random() < 0.8
        self.incremental = engine.streams_increments and pick.random() < 0.25
        self.stops = [STOP] if pick.random() < 0.1 else None
        self.exact = engine.is_exact(self)
        self.rids = [f"{number:x}c{index}" for index in range(self.n)]
        outputs = [model_text.output(self.tool if self.choice == "auto" else None, self.reasoning, pick) for _ in range(self.n)]
        self.texts = [text for text, _calls in outputs]
        self.calls = [calls for _text, calls in outputs]
        self.batches = [self.batches_of(text) for text in self.texts]

    def parsers(self):
        if not self.chat:
            return ["completion", "-"]
        return [self.tool or "-", self.reasoning or "-"]

    def logprobs_of(self, chat):
        if chat:
            return self.logprobs
        return 1 if self.logprobs else None

    def usage_options(self):
        if not self.stream or not self.usage:
            return {}
        options = {"include_usage": True}
        if self.usage == "continuous":
            options["continuous_usage_stats"] = True
        return {"stream_options": options}

    def batches_of(self, text):
        """The chunks of an output in batches; each batch reaches the server's generator at once."""
        pick = self.pick
        pieces = model_text.pieces_of(text, pick)
        finish = {"type": "stop", "matched": 2}
        if pick.random() < 0.15:
            pieces, finish = pieces[: pick.randint(1, len(pieces))], {"type": "length", "length": 64}
        elif self.stops:
            finish = {"type": "stop", "matched": STOP}
        chunks, most = [], pick.choice((1, 1, 1, 4))
        while pieces:
            count = pick.randint(1, most)
            taken, pieces = pieces[:count], pieces[count:]
            if pick.random() < 0.05:
                # An incomplete character: its text comes with the next chunk.
                chunks.append(("", 1, None))
            chunks.append(("".join(taken), len(taken), None))
        if finish["type"] == "stop" and pick.random() < 0.7:
            chunks.append(("", 1, finish))
        else:
            chunks[-1] = (*chunks[-1][:2], finish)
        batches, most = [], pick.choice((1, 1, 3, 12, len(chunks)))
        while chunks:
            count = pick.randint(1, most)
            batches.append(chunks[:count])
            chunks = chunks[count:]
        return batches

    def random_of(self, _at, _pending):
        return self.pick.random()
