"""The output processor and the serving classes of one vLLM release, behind an engine core whose outputs are given."""

import functools
import re
import sys
import tempfile
from pathlib import Path

import numpy
from tokenizers.decoders import DecodeStream

from . import model_text

MARKER = re.compile(r"<[^<>\s%]+>|\[TOOL_CALLS\]|\[ARGS\]|\[/?THINK\]|[\u25c1][^\u25b7]+[\u25b7]")


# Markers without text of their own here, which parsers look for when they start.
LOOKED_FOR = ("<assistant>", "<ifm|think>", "</ifm|think>", "<response>", "</response>", "<0x0A>")


class Anything:
    """Configuration without values."""

    def __init__(self, **given):
        self.__dict__.update(given)

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return None


def loadable(names, load):
    """Parsers whose packages are installed. `hf` needs a model's own template."""
    found = []
    for name in sorted(set(names) - {"hf"}):
        try:
            load(name)
        except ImportError as error:
            print(f"left out {name}: {str(error)[:80]}", file=sys.stderr)
        else:
            found.append(name)
    return found


class Vllm:
    streams_increments = True

    def __init__(self, _version):
        from vllm.entrypoints.openai.chat_completion import protocol as chat
        from vllm.entrypoints.openai.chat_completion.serving import OpenAIServingChat
        from vllm.entrypoints.openai.completion import protocol as completion
        from vllm.entrypoints.openai.completion.serving import OpenAIServingCompletion
        from vllm.reasoning import ReasoningParserManager
        from vllm.tool_parsers import ToolParserManager

        self.chat_request, self.completion_request = chat.ChatCompletionRequest, completion.CompletionRequest
        self.chat, self.completion = OpenAIServingChat, OpenAIServingCompletion
        self.tools = loadable(ToolParserManager.list_registered(), ToolParserManager.get_tool_parser)
        self.reasoning = loadable(ReasoningParserManager.list_registered(), ReasoningParserManager.get_reasoning_parser)

    def is_exact(self, _case):
        return False

    @functools.cache
    def tokenizer(self, special):
        """The tokenizer with every marker as one token, special or not."""
        from transformers import AutoTokenizer
        from vllm import tokenizers

        tokenizer = AutoTokenizer.from_pretrained(Path.home() / ".cache/tokengap/vllm/model")
        parts = [part for form in (*model_text.JSON_FORMS.values(), *model_text.XML_FORMS.values(), *model_text.PYTHON_FORMS.values()) for part in form]
        parts += [part for pair in (model_text.TAGS, *model_text.REASONING.values()) for part in pair]
        tokenizer.add_tokens(sorted({*LOOKED_FOR, *(marker for part in parts for marker in MARKER.findall(part))}), special_tokens=special)
        # vLLM keeps the vocabulary that it reads at first.
        with tempfile.TemporaryDirectory() as folder:
            tokenizer.save_pretrained(folder)
            return tokenizers.get_tokenizer(folder)

    @functools.cache
    def serving(self, chat, tool, reasoning, special):
        tokenizer = self.tokenizer(special)
        config = Anything(model="m", hf_config=Anything(model_type="llama"), max_model_len=100_000, get_diff_sampling_param=dict, generation_config="auto",
                          override_generation_config={})
        client = Anything(model_config=config, renderer=Anything(tokenizer=tokenizer), input_processor=Anything(), errored=False)
        models = Anything(base_model_paths=[Anything(name="m")], lora_requests={})
        if not chat:
            return self.completion(client, models, online_renderer=Anything(), request_logger=None)
        return self.chat(client, models, "assistant", online_renderer=Anything(), request_logger=None, chat_template=None, chat_template_content_format="auto",
                         reasoning_parser=reasoning or "", enable_auto_tools=bool(tool), tool_parser=tool)  # fmt: skip

    async def respond(self, case):
        special = case.pick.random() < 0.3
        tokenizer, serving = self.tokenizer(special), self.serving(case.chat, case.tool, case.reasoning, special)
        common = dict(model="m", stream=case.stream, n=case.n, max_tokens=90_000, logprobs=case.logprobs_of(case.chat), **case.usage_options())
        if case.stops:
            common["stop"] = case.stops
        number = case.rids[0][:-2].rjust(16, "0")
        if case.chat:
            tools = dict(tools=model_text.TOOLS, tool_choice=case.choice) if case.tool and case.choice else {}
            top = {"top_logprobs": 0} if case.logprobs else {}
            request = self.chat_request(messages=[{"role": "user", "content": "go"}], include_reasoning=case.separate, **top, **tools, **common)
            parser = serving.parser_cls and serving.parser_cls(tokenizer, request.tools, chat_template_kwargs={}, model_config=serving.model_config)
            if parser is not None:
                request = parser.adjust_request(request) or request
            shown = f"chatcmpl-{number}"
            inner = shown
        else:
            request = self.completion_request(prompt="go", **common)
            parser, shown = None, f"cmpl-{number}"
            inner = f"{shown}-0"
        steps, run = [], Core(tokenizer, request.to_sampling_params(90_000, {}), inner, case)
        results = run.results(steps)
        metadata = Anything()
        if case.chat:
            given = (request, results, shown, "m", [], tokenizer, metadata)
            if case.stream:
                async for event in serving.chat_completion_stream_generator(*given, chat_template_kwargs={}):
                    steps.append(event)
            else:
                steps.append((await serving.chat_completion_full_generator(*given, parser=parser)).model_dump_json())
        elif case.stream:
            numbered = ((0, result) async for result in results)
            async for event in serving.completion_stream_generator(request, [{}], numbered, shown, 1, "m", 1, tokenizer, metadata):
                steps.append(event)
        else:
            last = [result async for result in results][-1]
            steps.append(serving.request_output_to_completion_response([last], request, shown, 1, "m", tokenizer, metadata).model_dump_json())
        case.rids = run.rids
        return steps


class Core:
    """The real output processor, fed with the outputs of an engine core."""

    def __init__(self, tokenizer, params, external, case):
        from vllm.v1.engine import EngineCoreRequest
        from vllm.v1.engine.output_processor import OutputProcessor, RequestOutputCollector
        from vllm.v1.engine.parallel_sampling import ParentRequest

        self.tokenizer, self.params, self.case = tokenizer, params, case
        params.update_from_tokenizer(tokenizer)
        rid = f"{external}-{case.pick.getrandbits(32):08x}"
        self.queue = RequestOutputCollector(params.output_kind, rid)
        self.processor = OutputProcessor(tokenizer, log_stats=False)

        def request(rid, params):
            return EngineCoreRequest(request_id=rid, prompt_token_ids=[300, 301], mm_features=None, sampling_params=params, pooling_params=None,
                                     arrival_time=0.0, lora_request=None, cache_salt=None, data_parallel_rank=None, external_req_id=external)  # fmt: skip

        if case.n == 1:
            self.rids = [rid]
            self.processor.add_request(request(rid, params), "go", None, 0, self.queue)
            return
        parent, self.rids = ParentRequest(request(rid, params)), []
        for index in range(case.n):
            child, child_params = parent.get_child_info(index)
            self.rids.append(child)
            self.processor.add_request(request(child, child_params), "go", parent, index, self.queue)

    def chunks(self, index):
        """Ids of each chunk with their texts, and the finish reason."""
        from vllm.v1.engine import FinishReason

        pick = self.case.pick
        ids = self.tokenizer.encode(self.case.texts[index], add_special_tokens=False)
        finish = FinishReason.STOP
        if pick.random() < 0.15:
            ids, finish = ids[: pick.randint(1, len(ids))], FinishReason.LENGTH
        else:
            ids.append(self.tokenizer.eos_token_id)
        stream, most = DecodeStream(skip_special_tokens=True), pick.choice((1, 1, 1, 4, len(ids)))
        while ids:
            count = pick.randint(1, most)
            taken, ids = ids[:count], ids[count:]
            texts = [stream.step(self.tokenizer._tokenizer, token) or "" for token in taken]
            yield taken, texts, None if ids else finish

    def logprobs(self, ids):
        from vllm.v1.outputs import LogprobsLists

        if self.params.logprobs is None:
            return None
        width = self.params.logprobs + 1
        return LogprobsLists(numpy.array([[token] * width for token in ids]), numpy.full((len(ids), width), -0.5), numpy.zeros(len(ids), dtype=int))

    async def results(self, steps):
        from vllm.v1.engine import EngineCoreOutput

        waiting = {index: self.chunks(index) for index in range(self.case.n)}
        while waiting:
            # Several steps of the engine may come before the server's generator runs again.
            for _ in range(self.case.pick.choice((1, 1, 1, 5))):
                if not waiting:
                    break
                index = self.case.pick.choice(sorted(waiting))
                ids, texts, finish = next(waiting[index])
                output = EngineCoreOutput(request_id=self.rids[index], new_token_ids=ids, new_logprobs=self.logprobs(ids), finish_reason=finish)
                steps.append([self.rids[index], texts, len(ids), None if finish is None else str(finish), None])
                processed = self.processor.process_outputs([output])
                if finish is not None or processed.reqs_to_abort:
                    del waiting[index]
            result = self.queue.get_nowait()
            if result is not None:
                yield result
