"""The worker's side of a KV connector, which moves the caches of the layers as in a worker with a model. They contain zeros."""

from types import SimpleNamespace

import safetensors.torch  # noqa: F401, which ExampleConnector needs
import torch
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole


class WorkerConnector:
    def __init__(self, vllm_config, kv_cache_config):
        self.connector = KVConnectorFactory.create_connector(vllm_config, KVConnectorRole.WORKER, kv_cache_config)
        (group,) = kv_cache_config.kv_cache_groups
        spec = group.kv_cache_spec
        shape = (kv_cache_config.num_blocks, spec.num_kv_heads, spec.block_size, 2 * spec.head_size)
        self.layers = {name: torch.zeros(shape, dtype=spec.dtype) for name in group.layer_names}
        layers = {name: SimpleNamespace(kv_cache=layer) for name, layer in self.layers.items()}
        self.context = SimpleNamespace(attn_metadata=dict.fromkeys(self.layers), no_compile_layers=layers)

    def move_caches(self, metadata):
        """Loads and saves what the scheduler's side asks for in a step."""
        self.connector.bind_connector_metadata(metadata)
        self.connector.start_load_kv(self.context)
        for name, layer in self.layers.items():
            self.connector.save_kv_layer(name, layer, None)
        self.connector.clear_connector_metadata()
