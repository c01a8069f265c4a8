"""One SGLang release, unpacked from its wheel and importable together with the stubs."""

import asyncio
import dataclasses
import importlib
import os
import sys
import time
import types
from pathlib import Path

from . import stubs

# Modules of `get_serving()` and similar getters.
CONFIG_MODULES = ("sglang.srt.runtime_context",)
DEFAULT_SOURCES = Path(__file__).resolve().parent.parent / ".engine"


class Settings(types.SimpleNamespace):
    """Server arguments; unset ones are off."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return False


class Release:
    """The modules of one release; only one instance per process, because module names are global."""

    def __init__(self, version: str):
        sources = Path(os.environ.get("ENGINE_SOURCES", DEFAULT_SOURCES)).resolve()
        root = sources / version
        if not (root / "sglang").is_dir():
            raise SystemExit(f"cannot find SGLang {version} at {root}: run `cargo xtask engine {version}`")
        self.version = version
        self.root = root
        stubs.install(str(root))
        sys.path.insert(0, str(root))
        # Skip their __init__, which would start the frontend language and the HTTP server.
        for name in ("sglang", "sglang.srt", "sglang.srt.managers"):
            package = types.ModuleType(name)
            package.__path__ = [str(root / name.replace(".", "/"))]
            sys.modules[name] = package
        sys.modules["sglang"].ServerArgs = sys.modules["sglang"].Engine = stubs.Inert
        self.io = self.module("sglang.srt.managers.io_struct")

    def module(self, name: str):
        """Imports one of the release's own modules."""
        return importlib.import_module(name)

    def has(self, name: str) -> bool:
        """Returns whether the release has this module, without importing it."""
        path = self.root / name.replace(".", "/")
        return path.with_suffix(".py").exists() or path.is_dir()

    @property
    def echoes_queued_aborts(self) -> bool:
        """Whether a request aborted in the queue is answered with an AbortReq (0.4.5 and later)."""
        return "_handle_abort_req" in (self.root / "sglang/srt/managers/tokenizer_manager.py").read_text()

    @property
    def codec(self) -> str:
        """Serialization format of the release in this process."""
        return "pickle" if getattr(self.io, "_USE_PICKLE_IPC", True) else "msgpack"

    def zmq_socket(self, context, kind, endpoint: str, bind: bool):
        """A socket created by the release's own `get_zmq_socket`, with its high-water marks and buffer sizes."""
        for name in ("sglang.srt.utils.network", "sglang.srt.utils.common", "sglang.srt.utils"):
            if self.has(name) and hasattr(module := self.module(name), "get_zmq_socket"):
                return module.get_zmq_socket(context, kind, endpoint, bind)
        raise SystemExit(f"SGLang {self.version} has no get_zmq_socket in any known module")

    def send(self, socket, message) -> None:
        """The release's own send call on its output sockets (docs/internals/WIRE.md, "Serialization")."""
        if hasattr(self.io, "sock_send"):
            self.io.sock_send(socket, message)
        else:
            socket.send_pyobj(message)

    def replace_config_getters(self, module, settings: Settings) -> None:
        """0.5.19 and later read their settings through module-level getters (`get_serving()` and others)."""
        for name in vars(module).copy():
            if name.startswith("get_") and getattr(vars(module)[name], "__module__", "").startswith(CONFIG_MODULES):
                setattr(module, name, lambda: settings)

    def request_state(self, manager_module, request):
        """The TokenizerManager's record of a request that has been sent to the scheduler."""
        fields = {field.name for field in dataclasses.fields(manager_module.ReqState)}
        given = {}
        if "created_time" in fields:
            given["created_time"] = time.time()
        if "time_stats" in fields:
            given["time_stats"] = self.module("sglang.srt.observability.req_time_stats").APIServerReqTimeStats()
        return manager_module.ReqState([], False, asyncio.Event(), request, **given)
