"""One Dynamo release, unpacked from its wheels and importable together with an SGLang release."""

import importlib
import importlib.machinery
import sys
import types

from .. import stubs
from ..release import Release, Settings

# Packages imported without their __init__, which would start unneeded parts.
BARE = (
    "dynamo.common",
    "dynamo.common.backend",
    "dynamo.common.utils",
    "dynamo.sglang",
    "dynamo.sglang.request_handlers",
    "dynamo.sglang.request_handlers.llm",
)
# Real modules of `dynamo.common` and `dynamo.sglang`; the others are inert.
REAL = (
    "dynamo.common.backend.logprobs",
    "dynamo.common.constants",
    "dynamo.common.utils.engine_response",
    "dynamo.sglang.request_handlers",
)


class Finder(stubs.GpuSideFinder):
    """Inert modules that replace parts of Dynamo outside the output path, and modules that only a newer SGLang has."""

    def __init__(self, sglang: Release):
        self.sglang = sglang

    def find_spec(self, name, path=None, target=None):
        ours = name.startswith(("dynamo.common.", "dynamo.sglang.")) and not name.startswith(REAL)
        newer = name.startswith("sglang.") and not self.sglang.has(name)
        if ours or newer:
            return importlib.machinery.ModuleSpec(name, stubs._Loader(), is_package=True)
        return None


class Dynamo:
    """The modules of one release; only one instance per process."""

    def __init__(self, version: str, sglang: Release | None = None):
        root = (sglang.root.parent if sglang else sources()) / "dynamo" / version
        if not (root / "dynamo").is_dir():
            raise SystemExit(f"cannot find Dynamo {version} at {root}: run `cargo xtask engine --dynamo {version}`")
        self.version, self.sglang = version, sglang
        sys.path.insert(0, str(root))
        if sglang:
            for name in BARE:
                package = types.ModuleType(name)
                package.__path__ = [str(root / name.replace(".", "/"))]
                sys.modules[name] = package
            sys.meta_path.insert(0, Finder(sglang))
            sys.meta_path.append(stubs.MissingFinder(str(root)))
        self.runtime = importlib.import_module("dynamo.runtime")

    def connect(self, loop, discovery: str = "file"):
        """A DistributedRuntime without etcd and NATS. Instances discover each other through the folder `DYN_FILE_KV`."""
        try:
            return self.runtime.DistributedRuntime(loop, discovery, "tcp", False)
        except TypeError:
            return self.runtime.DistributedRuntime(loop, discovery, "tcp")

    @staticmethod
    def endpoint(runtime):
        """The worker's endpoint, which 1.x creates with a single call."""
        if hasattr(runtime, "endpoint"):
            return runtime.endpoint("dynamo.backend.generate")
        return runtime.namespace("dynamo").component("backend").endpoint("generate")

    def handler(self):
        """The release's DecodeWorkerHandler, without the engine that its __init__ would start."""
        module = importlib.import_module("dynamo.sglang.request_handlers.llm.decode_handler")
        handler = object.__new__(module.DecodeWorkerHandler)
        manager = Settings(abort_request=lambda **kwargs: None)
        vars(handler).update(
            engine=Settings(tokenizer_manager=manager), shutdown_event=None, serving_mode=None, _reports_kv_cache_hit=False
        )
        return handler

    async def register(self, endpoint, model: str) -> None:
        """Registers the model `m` in the folder `model` with frontends, with prompts as token ids."""
        llm = importlib.import_module("dynamo.llm")
        register = getattr(llm, "register_model", None) or llm.register_llm
        given = {}
        kinds = getattr(llm, "WorkerType", None)
        if kinds and self.version >= "1.6":
            given["worker_type"] = kinds.Aggregated
        await register(llm.ModelInput.Tokens, llm.ModelType.Chat | llm.ModelType.Completions, endpoint, model, "m", **given)


def sources():
    """Folder into which `cargo xtask engine` unpacks releases."""
    from ..release import DEFAULT_SOURCES

    return DEFAULT_SOURCES.resolve()
