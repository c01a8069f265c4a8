"""The tokenizer: the release's own `TokenizerManager.handle_loop`, `_handle_batch_output` and `_wait_one_response`, without the model
configuration and tokenizer that its `__init__` would load."""

import contextlib
import copy
import inspect
import uuid

from . import plan
from .release import Release, Settings


class NoWatchdog:
    """A disabled `soft_watchdog`."""

    def disable(self):
        return contextlib.nullcontext()

    def feed(self):
        pass


class Tokenizer:
    """One real TokenizerManager on a given inbox socket."""

    def __init__(self, release: Release, socket, incremental: bool, skip_tokenizer: bool):
        self.release = release
        self.module = release.module("sglang.srt.managers.tokenizer_manager")
        settings = Settings(
            stream_output=incremental,  # name up to 0.5.9
            incremental_streaming_output=incremental,
            skip_tokenizer_init=skip_tokenizer,
            weight_version="default",
            dp_size=1,
            tokenizer_worker_num=1,
            batch_notify_size=16,
            speculative_algorithm=None,
        )
        release.replace_config_getters(self.module, settings)
        self.manager = object.__new__(self.module.TokenizerManager)
        vars(self.manager).update(
            server_args=settings,
            recv_from_detokenizer=socket,
            rid_to_state={},
            _result_dispatcher=self._dispatch,
            soft_watchdog=NoWatchdog(),
            model_config=Settings(),
            incremental_streaming_output=incremental,
            skip_tokenizer_init=skip_tokenizer,
            last_receive_tstamp=0,
            disaggregation_mode=None,
            enable_lora=False,
            enable_metrics=False,
            enable_trace=False,
            log_requests=False,
            dump_requests_folder="",
            crash_dump_folder="",
            request_logger=Settings(log_finished_request=lambda *args, **kwargs: None),
            request_metrics_exporter_manager=Settings(exporter_enabled=lambda: False),
            config_value=lambda name: getattr(settings, name),
        )
        self._accepts_state = "state" in inspect.signature(self.manager._wait_one_response).parameters

    def _dispatch(self, message):
        """Does the same as `_result_dispatcher` for the harness's messages."""
        name = type(message).__name__
        if name.startswith("Batch"):
            return self.manager._handle_batch_output(message)
        if name == "AbortReq":
            # In 0.5.4 the handler fails on a stream without output, which crashes the engine. Here the
            # request stays unanswered, and the run continues.
            with contextlib.suppress(IndexError):
                self.manager._handle_abort_req(message)
        return None

    async def handle_loop(self):
        """Runs the real loop until cancelled."""
        await self.manager.handle_loop()

    def register(self, request: plan.Request):
        """Adds a request to the manager's table, like `_send_one_request`, and returns it."""
        obj = self.grouped(request) if request.group else self.release.io.GenerateReqInput(
            rid=request.rid, input_ids=plan.PROMPT, sampling_params={}, stream=request.stream
        )
        if not hasattr(obj, "background"):
            obj.background = False
        self.manager.rid_to_state[request.rid] = self.release.request_state(self.module, obj)
        return obj

    def grouped(self, request: plan.Request):
        """The request that the release creates for a batch's prompt or a sample, with its rid."""
        io, (kind, rid, place, size) = self.release.io, request.group
        if kind == "batch":
            whole = io.GenerateReqInput(rid=rid, input_ids=[plan.PROMPT] * size, sampling_params={}, stream=request.stream)
            whole.normalize_batch_and_arguments()
            obj = whole[place]
        else:
            whole = io.GenerateReqInput(input_ids=plan.PROMPT, sampling_params={"n": size - 1}, stream=request.stream)
            whole.normalize_batch_and_arguments()
            obj, uuid4 = copy.copy(whole[0]), io.uuid.uuid4
            # The release generates a new rid for every sample. Use the plan's rid, which the scheduler also knows.
            io.uuid.uuid4 = lambda: uuid.UUID(request.rid)
            obj.regenerate_rid()
            io.uuid.uuid4 = uuid4
        assert obj.rid == request.rid, f"the release uses rid {obj.rid}, the plan {request.rid}"
        return obj

    def responses(self, obj, http_request=None):
        """The real `_wait_one_response` of a registered request."""
        if self._accepts_state:
            return self.manager._wait_one_response(obj, self.manager.rid_to_state[obj.rid], http_request)
        return self.manager._wait_one_response(obj, http_request)
