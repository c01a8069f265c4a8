"""Lets a prefill server without a GPU transfer its cache. Each transfer first sleeps the milliseconds in the file `TRANSFER_DELAY`."""

import importlib.abc
import importlib.machinery
import os
import sys
import time


def without_cuda_events(module):
    """An event of CUDA would mark when the page numbers of a transfer are in memory."""
    module.MooncakeKVSender.supports_host_tensor_indices = False


def delayed(module):
    engine = module.MooncakeTransferEngine
    transfer = engine.batch_transfer_sync

    def transfer_late(self, *arguments, **named):
        with open(os.environ["TRANSFER_DELAY"]) as file:
            time.sleep(int(file.read()) / 1000)
        return transfer(self, *arguments, **named)

    engine.batch_transfer_sync = transfer_late


def without_kernels(module):
    """Dynamo imports models whose operators for a CPU are in no package. Nothing calls them."""
    find = module._OpNamespace.__getattr__

    def find_or_none(self, name):
        try:
            return find(self, name)
        except AttributeError:
            if self.name == "sgl_kernel" and name.endswith("_cpu"):
                return None
            raise

    module._OpNamespace.__getattr__ = find_or_none


CHANGES = {
    "sglang.srt.disaggregation.mooncake.conn": without_cuda_events,
    "sglang.srt.distributed.device_communicators.mooncake_transfer_engine": delayed,
}
if "DYN_FILE_KV" in os.environ:
    CHANGES["torch._ops"] = without_kernels


class Finder(importlib.abc.MetaPathFinder):
    """Changes modules after their import."""

    def find_spec(self, name, path, target=None):
        change = CHANGES.get(name)
        if change is None:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            change(module)

        spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, Finder())
