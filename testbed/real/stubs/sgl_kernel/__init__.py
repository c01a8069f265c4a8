"""Inert stand-in for the CUDA wheel: every name exists, and calling one raises. SGLang calls none of them on a CPU without AMX."""
import importlib.abc, importlib.machinery, sys, types
__version__ = "0.3.21"
class _Missing:
    def __init__(self, full): self._full = full; self.__name__ = full.rsplit(".", 1)[-1]
    def __call__(self, *a, **k): raise NotImplementedError("stub sgl_kernel: " + self._full)
    def __getattr__(self, n):
        if n.startswith("__"): raise AttributeError(n)
        return _Missing(self._full + "." + n)
_missing = _Missing
class _M(types.ModuleType):
    def __getattr__(self, n):
        if n.startswith("__"): raise AttributeError(n)
        return _missing(self.__name__ + "." + n)
class _F(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name.startswith("sgl_kernel."): return importlib.machinery.ModuleSpec(name, self, is_package=True)
    def create_module(self, spec): m = _M(spec.name); m.__path__ = []; return m
    def exec_module(self, m): pass
sys.meta_path.insert(0, _F())
def __getattr__(n):
    if n.startswith("__"): raise AttributeError(n)
    return _missing("sgl_kernel." + n)
