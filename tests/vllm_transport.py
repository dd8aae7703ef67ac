"""A weight transport for the CPU that stands in for NCCL and CUDA-IPC behind vLLM's own transfer interface."""

import functools
from dataclasses import dataclass
from typing import Any, ClassVar


@functools.cache  # vLLM takes a name once in a process, and several files of tests may share one
def register_handing_over():
    """A transport for CPU: the tensors themselves are the message. Registered as vLLM's documentation tells."""
    from vllm.distributed.weight_transfer import base
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory, WeightTransferTrainerFactory
    from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

    @dataclass
    class Init(base.WeightTransferInitInfo):
        rank_offset: int

    @dataclass
    class Update(base.WeightTransferUpdateInfo):
        tensors: list[Any]

    class Receiver(base.WeightTransferEngine):
        init_info_cls, update_info_cls = Init, Update
        connected: ClassVar[list[int]] = []

        def init_transfer_engine(self, init_info):
            self.connected.append(init_info.rank_offset)

        def start_weight_update(self):
            initialize_layerwise_reload(self.model)

        def receive_weights(self, update_info):
            assert self.connected
            self.model.load_weights(update_info.tensors)

        def finish_weight_update(self):
            finalize_layerwise_reload(self.model, self.model_config)

        def shutdown(self):
            self.connected.clear()

    @dataclass
    class TrainerInit(base.TrainerInitInfo):
        backend: ClassVar[str] = "handing_over"

    class Trainer(base.TrainerWeightTransferEngine):
        init_info_cls = TrainerInit

        @classmethod
        def trainer_init(cls, init_info, *, client, source=None):
            client.init_weight_transfer_engine({"rank_offset": 1})
            return cls(client=client, source=source)

        def send_weights(self):
            self.client.start_weight_update()
            self.client.update_weights({"tensors": list(self.source)})
            self.client.finish_weight_update()

    WeightTransferEngineFactory.register_engine("handing_over", Receiver)
    WeightTransferTrainerFactory.register_engine("handing_over", Trainer)
    register_handing_over.trainer_init, register_handing_over.receiver = TrainerInit, Receiver
