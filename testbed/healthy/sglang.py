"""The serving classes of one SGLang release, behind a TokenizerManager whose outputs are given."""

import functools
import json
from types import SimpleNamespace

from testbed import stubs
from testbed.openai_api import PREFIX
from testbed.release import CONFIG_MODULES, Release, Settings

from . import model_text

stubs.use_parsers()


class Manager:
    """Yields the outputs of one request, and notes the frames from which each is made."""

    served_model_name = "m"
    model_path = "m"
    request_logger = Settings()

    def __init__(self, settings, tokenizer):
        self.server_args, self.tokenizer = settings, tokenizer
        self.model_config = Settings(get_default_sampling_params=dict, hf_config=Settings(architectures=[], to_dict=dict))
        settings.get_hf_config = lambda: self.model_config.hf_config

    def config_value(self, name):
        return getattr(self.server_args, name)

    def create_abort_task(self, _obj):
        return None

    async def generate_request(self, obj, _http_request=None):
        async for outputs in obj.outputs():
            yield outputs


class Sglang:
    def __init__(self, version):
        self.release = Release(version)
        self.protocol = self.release.module(PREFIX + "protocol")
        parsers = self.release.module("sglang.srt.function_call.function_call_parser").FunctionCallParser
        self.tools = list(parsers.ToolCallParserEnum)
        self.reasoning = list(self.release.module("sglang.srt.parser.reasoning_parser").ReasoningParser.DetectorMap)
        self.getters = {}
        self.version = tuple(map(int, version.split(".")[:3]))
        # Earlier releases have the whole text in each output (up to 0.5.9), or cut an incremental text again and lose some of it.
        self.streams_increments = self.version >= (0, 5, 17)

    def is_exact(self, case):
        """Whether `attach` knows that no parser applies."""
        return self.version < (0, 5, 12) and not case.tool and not case.reasoning

    @functools.cached_property
    def tokenizer(self):
        from pathlib import Path

        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(Path.home() / ".cache/tokengap/sglang/model")

    @functools.cache
    def serving(self, chat, tool, reasoning, incremental):
        settings = Settings(tool_call_parser=tool, reasoning_parser=reasoning, incremental_streaming_output=incremental,
                            stream_output=incremental, default_chat_template_kwargs=None)  # fmt: skip
        name, class_ = ("serving_chat", "OpenAIServingChat") if chat else ("serving_completions", "OpenAIServingCompletion")
        module = self.release.module(PREFIX + name)

        class Serving(getattr(module, class_)):
            def _convert_to_internal_request(self, request, _raw_request=None, *_ignored):
                return request.adapted, request

            async def handle_request(self, request, raw_request):
                configure(settings)
                return await super().handle_request(request, raw_request)

        getters = [n for n, v in vars(module).items() if getattr(v, "__module__", "").startswith(CONFIG_MODULES) and n.startswith("get_")]
        getters = self.getters.setdefault(name, getters)

        def configure(settings):
            for getter in getters:
                setattr(module, getter, lambda: settings)

        configure(settings)
        template = Settings(reasoning_config=None, force_reasoning=False, jinja_template_content_format="string")
        return Serving(Manager(settings, self.tokenizer), template)

    async def respond(self, case):
        """Passes the case's chunks through the serving code; returns the steps."""
        steps = []
        serving = self.serving(case.chat, case.tool, case.reasoning, case.incremental)
        common = dict(model="m", stream=case.stream, n=case.n, logprobs=case.logprobs_of(case.chat), **case.usage_options())
        if case.stops:
            common["stop"] = case.stops
        if case.chat:
            tools = dict(tools=model_text.TOOLS, tool_choice=case.choice) if case.tool and case.choice else {}
            request = self.protocol.ChatCompletionRequest(
                messages=[{"role": "user", "content": "go"}], separate_reasoning=case.separate, stream_reasoning=case.stream_reasoning, **tools, **common
            )
        else:
            request = self.protocol.CompletionRequest(prompt="go", **common)
        object.__setattr__(request, "adapted", SimpleNamespace(outputs=lambda: outputs(case, steps), text="go", input_ids=[1], sampling_params={},
                                                              rid=case.rids[0], stream=case.stream, is_single=True))  # fmt: skip
        response = await serving.handle_request(request, None)
        if case.stream and hasattr(response, "body_iterator"):
            async for event in response.body_iterator:
                steps.append(event if isinstance(event, str) else event.decode())
            return steps
        if hasattr(response, "model_dump_json"):
            steps.append(response.model_dump_json())
        else:
            steps.append(response.body.decode())
        if not json.loads(steps[-1]).get("choices"):
            raise ValueError(steps[-1][:300])
        return steps


async def outputs(case, steps):
    """Outputs as the TokenizerManager yields them, one for each batch of chunks of a choice."""
    choices = [Choice(case, index) for index in range(case.n)]
    pending = [(choice, batch) for choice in choices for batch in case.batches[choice.index]]
    if case.n > 1:
        # Interleaved, in order for each choice.
        order = sorted(range(len(pending)), key=lambda at: (case.random_of(at, pending), at))
        by_choice = {choice.index: iter(case.batches[choice.index]) for choice in choices}
        pending = [(pending[at][0], next(by_choice[pending[at][0].index])) for at in order]
    if not case.stream:
        for choice, batch in pending:
            choice.enter(batch, steps)
        every = [choice.output() for choice in choices]
        yield every if case.n > 1 else every[0]
        return
    for choice, batch in pending:
        choice.enter(batch, steps)
        yield choice.output()


class Choice:
    def __init__(self, case, index):
        self.case, self.index = case, index
        self.text, self.new, self.tokens, self.finish = "", "", 0, None
        self.logprobs, self.given = [], 0

    def enter(self, batch, steps):
        self.new = ""
        for text, tokens, finish in batch:
            self.tokens += tokens
            steps.append([self.case.rids[self.index], text, tokens, finish and finish["type"], self.tokens])
            self.text, self.new, self.finish = self.text + text, self.new + text, finish
            self.logprobs += [(-0.5, 5, text)] * tokens

    def output(self):
        new = self.logprobs[self.given :] if self.case.incremental else self.logprobs
        self.given = len(self.logprobs)
        meta = {
            "id": self.case.rids[self.index], "finish_reason": dict(self.finish) if self.finish else None, "prompt_tokens": 2, "weight_version": "default",
            "completion_tokens": self.tokens, "cached_tokens": 0, "output_token_logprobs": new, "output_top_logprobs": [[x] for x in new],
            "output_token_logprobs_length": len(self.logprobs), "input_token_logprobs": [], "input_top_logprobs": [],
        }  # fmt: skip
        return {"text": self.new if self.case.incremental and self.case.stream else self.text, "output_ids": [5] * self.tokens, "meta_info": meta, "index": self.index}
