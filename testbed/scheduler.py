"""The scheduler: the release's `Req` and output code, from tokens to the message on the socket."""

import dataclasses
import inspect
from array import array

from . import plan
from .release import Release, Settings
from .truth import describe


class Outlet:
    """Replaces the scheduler's sender (a socket up to 0.5.3, a `SenderWrapper` from 0.5.4). Records each message, then sends it with the
    release's own call."""

    def __init__(self, release: Release, socket, outbox):
        self.release, self.socket, self.outbox = release, socket, outbox

    def send_pyobj(self, message, *_ignored, **__ignored):
        self.outbox.about = describe(message)
        self.release.send(self.socket, message)

    send_output = send_pyobj


class NoSpeculation:
    """`spec_algorithm` with speculative decoding disabled."""

    def is_none(self):
        return True

    def __getattr__(self, name):
        return lambda *args, **kwargs: False


class Scheduler:
    """Creates requests, adds tokens to them and streams them, like a scheduler step."""

    def __init__(self, release: Release, outlet: Outlet, control: Outlet, skip_tokenizer: bool, disaggregation=None):
        self.release, self.control = release, control
        modes = release.module("sglang.srt.disaggregation.utils").DisaggregationMode if disaggregation else None
        self.disaggregation = modes and modes(disaggregation)
        self.batch = release.module("sglang.srt.managers.schedule_batch")
        self.sampling = release.module("sglang.srt.sampling.sampling_params")
        self.array_ids = self._ids_are_arrays()
        self.stream_is_given = "stream" in inspect.signature(self.batch.Req).parameters
        self.stream_output = self._streamer(outlet, skip_tokenizer)

    def _streamer(self, outlet, skip_tokenizer):
        """The release's `stream_output`, bound to an object with the attributes that it reads."""
        settings = Settings(
            stream_interval=1, weight_version="default", skip_tokenizer_init=skip_tokenizer, attn_tp_rank=0, dp_rank=0
        )
        if self.release.has("sglang.srt.managers.scheduler_components.output_streamer"):
            module = self.release.module("sglang.srt.managers.scheduler_components.output_streamer")
            self.release.replace_config_getters(module, settings)
            known = {
                "send_to_detokenizer": outlet,
                "tree_cache": None,
                "server_args": settings,
                "is_generation": True,
                "spec_algorithm": NoSpeculation(),
                "disaggregation_mode": self.disaggregation,
                "enable_hicache_storage": lambda: False,
                "ps": settings,
                "rust_server": None,
                "load_inquirer_get_loads": self._loads,
            }
            parameters = inspect.signature(module.SchedulerOutputStreamer).parameters.values()
            given = {p.name: known[p.name] for p in parameters if p.name in known}
            given |= {p.name: Settings() for p in parameters if p.default is p.empty and p.name not in known}
            return module.SchedulerOutputStreamer(**given).stream_output
        if self.release.has("sglang.srt.managers.scheduler_output_processor_mixin"):
            module = self.release.module("sglang.srt.managers.scheduler_output_processor_mixin")
            scheduler = type("Scheduler", (module.SchedulerOutputProcessorMixin,), {})()
        else:  # up to 0.4.4
            real = self.release.module("sglang.srt.managers.scheduler").Scheduler
            methods = {name: value for name, value in vars(real).items() if name.startswith("stream_output")}
            scheduler = type("Scheduler", (), methods)()
        vars(scheduler).update(
            send_to_detokenizer=outlet,
            model_config=Settings(),
            stream_interval=1,
            skip_tokenizer_init=skip_tokenizer,
            spec_algorithm=NoSpeculation(),
            disaggregation_mode=self.disaggregation,
            tp_rank=0,
            attn_tp_rank=0,
            dp_rank=0,
            server_args=settings,
            is_generation=True,
            forward_ct_decode=0,
            draft_worker=None,
            tree_cache=Settings(),
            get_load=self._loads,
            get_loads=self._loads,
        )
        return scheduler.stream_output

    def _loads(self, *_args, **_kwargs):
        """The `load` column of 0.5.7 to 0.5.13, with zeros."""
        for name in ("GetLoadsReqOutput", "GetLoadReqOutput"):
            loads = getattr(self.release.io, name, None)
            if loads and dataclasses.is_dataclass(loads):
                required = (f for f in dataclasses.fields(loads) if f.default is f.default_factory)
                return loads(**{field.name: 0 for field in required})
        return None

    def request(self, wanted: plan.Request, workers: list[str] = ()):
        """A `Req` after prefill, assigned to one of the tokenizer workers."""
        prompt = array("q", plan.PROMPT) if self.array_ids else list(plan.PROMPT)
        params = self.sampling.SamplingParams(max_new_tokens=wanted.tokens)
        given = {"stream": wanted.stream} if self.stream_is_given else {}
        req = self.batch.Req(wanted.rid, "", prompt, params, **given)
        req.stream = wanted.stream
        if workers:
            req.http_worker_ipc = workers[wanted.index % len(workers)]
        req.tokenizer = None
        req.first_token = plan.FIRST_TOKEN
        return req

    def _ids_are_arrays(self) -> bool:
        """0.5.13 and later keep token ids in `array('q')`."""
        try:
            probe = self.batch.Req("probe", "", [1], self.sampling.SamplingParams(max_new_tokens=1))
        except Exception:  # those releases reject a plain list
            return True
        return not isinstance(probe.output_ids, list)

    def grow(self, req, count: int) -> None:
        """Adds the next `count` tokens to a request."""
        done = len(req.output_ids)
        req.output_ids.extend(req.first_token + done + i for i in range(count))

    def finish(self, req, end: str) -> None:
        """Marks a request as finished, with the release's own classes."""
        if end == "stop":
            req.output_ids[-1] = plan.STOP_TOKEN
            req.finished_reason = self.batch.FINISH_MATCHED_TOKEN(matched=plan.STOP_TOKEN)
        elif end == "abort":
            req.finished_reason = self.batch.FINISH_ABORT("aborted by the plan")
        elif end == "warm-up":  # like `check_finished` for max_new_tokens 0
            req.finished_reason, req.finished_len = self.batch.FINISH_LENGTH(length=0), 0
        elif end == "prefill":  # like the prefill server's `process_disagg_prefill_inflight_queue`
            req.finished_reason = self.batch.FINISH_LENGTH(length=0)
        else:
            req.finished_reason = self.batch.FINISH_LENGTH(length=len(req.output_ids))

    def abort_queued(self, rid: str) -> None:
        """Notifies the tokenizer that a request was dropped from the waiting queue."""
        self.control.send_output(self.release.io.AbortReq(rid=rid))

    def health_check(self) -> None:
        """A different message between the outputs: releases since 0.4.1 answer health checks on this socket."""
        if hasattr(self.release.io, "HealthCheckOutput"):
            self.control.send_output(self.release.io.HealthCheckOutput())
