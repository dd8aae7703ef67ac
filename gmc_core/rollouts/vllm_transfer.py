"""Weights from GPU to GPU through vLLM's own transfer: CUDA IPC when learner and engine share a device, NCCL otherwise.

The learner holds a `WeightSender`; what it sends to the engines over the ordinary channel (`LoadWeights` commands) is a
`TransferredWeights`, a few names and handles, and the tensors go from device to device. Engines are built with
`EngineSpec(options={"weight_transfer": "ipc"})` or `"nccl"`.

The order of the phases is tested on CPU with a transport of the test's own. The two transports themselves need a GPU
and were not run here: they are written against vLLM 0.32 (docs.vllm.ai, "Weight Transfer").
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

BACKENDS = ("ipc", "nccl")


@dataclass(frozen=True)
class TransferredWeights:
    """What an engine needs to fetch an update itself: `VllmEngine.update_weights` takes it in place of tensors.

    `connect`: the handshake that precedes the first update, or None; an engine that gets only this keeps its weights
    and its version. `updates`: what vLLM's trainer engine says about the tensors, one item per phase of a round.
    It is its own `WeightSource`.
    """

    connect: Mapping[str, Any] | None = None
    updates: tuple[Mapping[str, Any], ...] = ()

    def load(self) -> TransferredWeights:
        return self


Deliver = Callable[[TransferredWeights, int], Future]
"""Hands a message and the version it leads to to one engine; the future is done when the engine has carried it out."""


class WeightSender:
    """The learner's end: `send(version)` brings the parameters of `model` into every engine and returns then.

    `engines`: one `Deliver` per engine. All take part in every round (a broadcast waits for each), so the caller must
    not let an update be skipped in favour of a newer one: send the next when this one has returned, as this class
    does. `workers_per_engine`: tensor times pipeline parallel size of each engine. For NCCL, `address` and `port` is
    a free endpoint on the learner's host. `timeout` seconds bound the wait for the engines.
    Raises ValueError for a backend that vLLM does not know, TimeoutError naming the engine that did not answer.
    """

    def __init__(
        self,
        model: Any,
        backend: str,
        engines: Sequence[Deliver],
        *,
        address: str = "127.0.0.1",
        port: int = 29600,
        workers_per_engine: int = 1,
        timeout: float = 300.0,
    ) -> None:
        from gmc_core.rollouts.vllm_environment import import_vllm

        import_vllm()
        from vllm.distributed.weight_transfer.base import ModuleSource
        from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory

        self._client = _Client(engines, workers_per_engine, timeout)
        info = _init_info(backend, address, port, world_size=1 + len(engines) * workers_per_engine)
        self._trainer = WeightTransferTrainerFactory.trainer_init(info, client=self._client, source=ModuleSource(model))

    def send(self, version: int) -> None:
        """The tensors may be changed again when this returns."""
        self._client.version = version
        self._trainer.send_weights()

    def close(self) -> None:
        self._trainer.shutdown()


def _init_info(backend: str, address: str, port: int, world_size: int) -> Any:
    """The trainer's init info. IPC unpacked and NCCL packed: both then make an update in one message, hence at once."""
    if backend == "ipc":
        from vllm.distributed.weight_transfer.ipc_engine import IPCTrainerInitInfo

        return IPCTrainerInitInfo(rank=0, packed=False)
    if backend == "nccl":
        from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo

        return NCCLTrainerInitInfo(master_address=address, master_port=port, world_size=world_size, packed=True, rank=0)
    raise ValueError(f"weight transfer backend is {backend!r}; choose one of {', '.join(BACKENDS)}")


class _Client:
    """vLLM's `VLLMWeightSyncClient` (a structural protocol) over our channel to several engines."""

    def __init__(self, engines: Sequence[Deliver], workers_per_engine: int, timeout: float) -> None:
        self.version = 0
        self._engines, self._workers, self._timeout = list(engines), workers_per_engine, timeout

    def init_weight_transfer_engine(self, init_info: Mapping[str, Any]) -> None:
        # Every engine counts its own workers from 0; in the group of the broadcast they come one after another.
        messages = [
            TransferredWeights(connect=_shifted(init_info, index * self._workers))
            for index in range(len(self._engines))
        ]
        self._deliver(messages)

    def start_weight_update(self) -> None:
        """Nothing: an engine opens and closes an update itself, between two of its steps."""

    def update_weights(self, update_info: Mapping[str, Any] | list[Mapping[str, Any]]) -> None:
        updates = tuple(update_info) if isinstance(update_info, list) else (update_info,)
        self._deliver([TransferredWeights(updates=updates)] * len(self._engines))

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """Nothing, see `start_weight_update`."""

    def _deliver(self, messages: Sequence[TransferredWeights]) -> None:
        futures = [deliver(message, self.version) for deliver, message in zip(self._engines, messages, strict=True)]
        for index, future in enumerate(futures):
            try:
                future.result(self._timeout)
            except TimeoutError as error:
                raise TimeoutError(
                    f"engine {index} of {len(futures)} did not take policy version {self.version} within "
                    f"{self._timeout:g} s; the others wait for it. Is its worker alive, and its event queue read?"
                ) from error


def _shifted(init_info: Mapping[str, Any], ranks: int) -> dict[str, Any]:
    info = dict(init_info)
    if "rank_offset" in info:
        info["rank_offset"] += ranks
    return info
