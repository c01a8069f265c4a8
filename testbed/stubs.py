"""Inert replacements for the modules of the GPU stack.

The output path of SGLang is plain Python, but its modules import torch, triton, kernels and models at the top. A module that the engine
imports and that is not installed becomes a `StubModule`. Each of its attributes is a class that can be subclassed, called, indexed and used
as a decorator, and does nothing. The engine's own GPU packages are always replaced.
"""

import abc
import importlib.abc
import importlib.machinery
import sys
import types

# The engine's packages with kernels, models and memory pools, which the output path does not use.
GPU_SIDE = (
    "sglang.jit_kernel",
    "sglang.lang",
    "sglang.srt.batch_overlap",
    "sglang.srt.configs",
    "sglang.srt.constrained",
    "sglang.srt.distributed",
    "sglang.srt.dllm",
    "sglang.srt.eplb",
    "sglang.srt.function_call",
    "sglang.srt.hf_transformers_utils",
    "sglang.srt.layers",
    "sglang.srt.mem_cache",
    "sglang.srt.model_executor",
    "sglang.srt.model_loader",
    "sglang.srt.models",
    "sglang.srt.parser",
    "sglang.srt.server_args",
    "sglang.srt.speculative",
    "sglang.srt.utils.hf_transformers_utils",
)


# Parsers of tool calls and reasoning, which the serving classes of the OpenAI endpoints use.
PARSERS = ("sglang.srt.function_call", "sglang.srt.parser")


def use_parsers() -> None:
    """Lets the engine's own parsers be imported instead of stubs."""
    global GPU_SIDE
    GPU_SIDE = tuple(name for name in GPU_SIDE if name not in PARSERS)


class InertType(abc.ABCMeta):
    """Metaclass of inert classes, whose class attributes are also inert."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Inert

    def __or__(cls, other):
        return cls

    def __ror__(cls, other):
        return cls

    def __getitem__(cls, key):
        return cls

    def __iter__(cls):
        return iter(())


class Inert(metaclass=InertType):
    """Accepts any call and does nothing; as a decorator, returns the decorated object."""

    def __init__(self, *args, **kwargs):
        pass

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__()

    def __call__(self, *args, **kwargs):
        if len(args) == 1 and callable(args[0]) and not kwargs:
            return args[0]
        return Inert()

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Inert()

    def __class_getitem__(cls, key):
        return cls

    def __getitem__(self, key):
        return Inert()

    def __iter__(self):
        return iter(())

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        return False

    @classmethod
    def __get_pydantic_core_schema__(cls, source, handler):
        """Accepts any value, as a field of the OpenAI protocol's pydantic models."""
        from pydantic_core import core_schema

        return core_schema.any_schema()

    # Modules compare versions at import time ("torch.__version__ >= ..."). The result does not matter, but the comparison must not fail.
    def __lt__(self, other):
        return False

    __le__ = __lt__

    def __gt__(self, other):
        return True

    __ge__ = __gt__


class StubModule(types.ModuleType):
    """A module in which every attribute is an inert class of that name."""

    __version__ = "999.0.0"

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        inert = InertType(name, (Inert,), {"__module__": self.__name__})
        setattr(self, name, inert)
        return inert


class _Loader(importlib.abc.Loader):
    def create_module(self, spec):
        module = StubModule(spec.name)
        module.__path__ = []
        return module

    def exec_module(self, module):
        pass


class GpuSideFinder(importlib.abc.MetaPathFinder):
    """First finder, for the engine's GPU packages."""

    def find_spec(self, name, path=None, target=None):
        if any(name == package or name.startswith(package + ".") for package in GPU_SIDE):
            return importlib.machinery.ModuleSpec(name, _Loader(), is_package=True)
        return None


class MissingFinder(importlib.abc.MetaPathFinder):
    """Last finder, only for imports by the engine's source: other libraries must still get an ImportError."""

    def __init__(self, source: str):
        self.source = source
        self.stubbed: set[str] = set()

    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top == "sglang" or top in sys.stdlib_module_names:
            return None
        if top not in self.stubbed and not self._asked_by_engine():
            return None
        self.stubbed.add(top)
        return importlib.machinery.ModuleSpec(name, _Loader(), is_package=True)

    def _asked_by_engine(self) -> bool:
        frame = sys._getframe(2)
        while frame is not None:
            file = frame.f_code.co_filename
            if "importlib" not in file:
                return file.startswith(self.source)
            frame = frame.f_back
        return False


def install(source: str) -> None:
    """Installs both finders for the engine unpacked at `source`."""
    sys.meta_path.insert(0, GpuSideFinder())
    sys.meta_path.append(MissingFinder(source))
