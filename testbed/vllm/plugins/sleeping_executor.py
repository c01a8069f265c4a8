"""An executor without a model: the forward pass is a sleep of `STEP_MS`, and the rest of the engine is vLLM's own.

`PROMPT_TOKEN_US`: microseconds by which each token of a prompt makes its step longer. `FAIL_AFTER`: number of steps after which a step fails and the engine exits. `SCRIPT`: ids of every output, a JSON list; an end
token follows."""

import json
import os
import time
import zlib
from concurrent.futures import Future

import torch
from vllm.v1.executor.abstract import Executor
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.outputs import ModelRunnerOutput

# Lower ids are special tokens.
FIRST = 5
# Token that ends an output.
END = 1


def future(value):
    made = Future()
    made.set_result(value)
    return made


class SleepingExecutor(Executor):
    supports_pp = True

    def _init_executor(self):
        self.vocabulary = self.vllm_config.model_config.get_vocab_size()
        self.step_s = float(os.environ.get("STEP_MS", "10")) / 1e3
        self.prompt_token_s = float(os.environ.get("PROMPT_TOKEN_US", "0")) / 1e6
        self.steps = int(os.environ.get("FAIL_AFTER", "0"))
        self.script = json.loads(os.environ.get("SCRIPT", "[]"))
        self.connector = None
        # Prompt tokens and generated tokens of each request.
        self.requests = {}

    def get_kv_cache_specs(self, *_, **__):
        layers = self.model_config.hf_config.num_hidden_layers
        size = self.cache_config.block_size
        spec = {
            f"layer.{layer}": FullAttentionSpec(block_size=size, num_kv_heads=2, head_size=16, dtype=torch.float16)
            for layer in range(layers)
        }
        return [spec]

    def get_supported_kv_cache_layouts(self):
        return [["LBNHC"]]

    def set_kv_cache_layout(self, *_, **__):
        pass

    def determine_available_memory(self, *_, **__):
        return [1 << 30]

    def initialize_from_config(self, kv_cache_configs):
        if self.vllm_config.kv_transfer_config:
            from worker_connector import WorkerConnector

            self.connector = WorkerConnector(self.vllm_config, kv_cache_configs[0])

    def compile_or_warm_up_model(self, *_, **__):
        pass

    def get_kv_connector_handshake_metadata(self):
        return [None]

    @property
    def supported_tasks(self):
        return ("generate",)

    def supports_draft_weight_updates(self):
        return False

    def collective_rpc(self, method, timeout=None, args=(), kwargs=None, non_block=False):
        return future([None]) if non_block else [None]

    def execute_dummy_batch(self):
        time.sleep(self.step_s)

    def take_draft_token_ids(self):
        return None

    def check_health(self):
        pass

    def shutdown(self):
        pass

    def execute_model(self, scheduled, non_block=False):
        output = self.step(scheduled)
        return future(output) if non_block else output

    def sample_tokens(self, grammar_output, non_block=False):
        return future(None) if non_block else None

    def token(self, request, place):
        if self.script:
            return self.script[place] if place < len(self.script) else END
        return FIRST + zlib.crc32(f"{request}:{place}".encode()) % (self.vocabulary - FIRST)

    def prompt_tokens(self, scheduled, computed):
        """Number of tokens of prompts in a step."""
        left = {request: self.requests[request][0] - computed[request] for request in scheduled.num_scheduled_tokens}
        return sum(max(0, min(left[request], tokens)) for request, tokens in scheduled.num_scheduled_tokens.items())

    def step(self, scheduled):
        for finished in scheduled.finished_req_ids:
            self.requests.pop(finished, None)
        computed = {}
        for new in scheduled.scheduled_new_reqs:
            self.requests[new.req_id] = [len(new.prompt_token_ids or ()), 0]
            computed[new.req_id] = new.num_computed_tokens
        cached = scheduled.scheduled_cached_reqs
        computed.update(zip(cached.req_ids, cached.num_computed_tokens))
        if self.connector and scheduled.kv_connector_metadata:
            self.connector.move_caches(scheduled.kv_connector_metadata)
        if scheduled.total_num_scheduled_tokens == 0:
            return ModelRunnerOutput(req_ids=[], req_id_to_index={})
        time.sleep(self.step_s + self.prompt_token_s * self.prompt_tokens(scheduled, computed))
        self.steps -= 1
        if self.steps == 0:
            raise RuntimeError("FAIL_AFTER")
        ids, tokens = list(scheduled.num_scheduled_tokens), []
        for request in ids:
            prompt, generated = self.requests[request]
            if computed[request] + scheduled.num_scheduled_tokens[request] < prompt + generated:
                # The prompt is not processed yet.
                tokens.append([])
                continue
            tokens.append([self.token(request, generated)])
            self.requests[request][1] += 1
        places = {request: index for index, request in enumerate(ids)}
        return ModelRunnerOutput(
            req_ids=ids,
            req_id_to_index=places,
            sampled_token_ids=tokens,
            logprobs=None,
            prompt_logprobs_dict={},
            pooler_output=[],
        )
