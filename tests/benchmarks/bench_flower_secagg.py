"""Cost of Flower's own SecAgg+ with as many neighbours as ours: bytes, seconds, one process.

    python tests/benchmarks/bench_flower_secagg.py --users 10 100 --write FILE

Its workflow and its client mod run unchanged; messages are handed over in memory. Its vectors are
32-bit integers of clipped and weighted floats, ours 64-bit integers, so half of our bytes.
Needs `pip install flwr==1.41.0`.
"""

# pyright: reportMissingImports=false

import logging
import time
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import tyro
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.client.mod import secaggplus_mod
from flwr.common import FitIns, FitRes, Status, ndarrays_to_parameters, serde
from flwr.common.typing import Code
from flwr.compat.common.recorddict_compat import fitres_to_recorddict, parameters_to_arrayrecord
from flwr.server import LegacyContext, SimpleClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.server.strategy import FedAvg
from flwr.server.workflow import SecAggPlusWorkflow
from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD, Key
from flwr.supercore.task_identity import TaskIdentity

from tests.benchmarks.bench_secure_sum import machine
from tests.benchmarks.saving import save
from train_distributed.secure_sum.graph import choose_degree

CLIP = 8.0  # Flower's clipping range by default


class Proxy(ClientProxy):
    """A client's name; the workflow asks it for nothing else."""

    get_properties = get_parameters = fit = evaluate = reconnect = None  # pyright: ignore

    def __init__(self, node_id: int) -> None:
        super().__init__(str(node_id))
        self.node_id = node_id


Proxy.__abstractmethods__ = frozenset()  # pyright: ignore


class Cohort:
    """The clients, and the grid that the workflow talks to: counts their seconds and bytes."""

    def __init__(self, users: int, vector: np.ndarray) -> None:
        self.contexts = {
            i: Context(run_id=1, node_id=i, node_config={}, state=RecordDict(), run_config={})
            for i in range(1, users + 1)
        }
        self.vector, self.seconds, self.sent, self.received = vector, 0.0, 0, 0

    def send_and_receive(self, messages: Iterable[Message], **_: Any) -> list[Message]:
        """Every client's answer."""
        return [self._answer(message) for message in messages]

    def _answer(self, message: Message) -> Message:
        sent = serde.recorddict_to_proto(message.content)
        self.received += sent.ByteSize()
        message.content = serde.recorddict_from_proto(sent)  # one each: the mod changes it
        started = time.perf_counter()
        context = self.contexts[message.metadata.dst_node_id]
        answer = secaggplus_mod(message, context, self._fit)
        self.seconds += time.perf_counter() - started
        self.sent += serde.recorddict_to_proto(answer.content).ByteSize()
        return answer

    def _fit(self, message: Message, _: Context) -> Message:
        result = FitRes(Status(Code.OK, ""), ndarrays_to_parameters([self.vector]), 1, {})
        return Message(fitres_to_recorddict(result, True), reply_to=message)


class Everyone(FedAvg):
    """Samples all clients."""

    def configure_fit(self, server_round: int, parameters: Any, client_manager: Any) -> list:
        """The parameters to every client."""
        return [(proxy, FitIns(parameters, {})) for proxy in client_manager.all().values()]


def measure(users: int, dimension: int) -> dict[str, Any]:
    """One run; the average is checked."""
    vector = np.random.default_rng(0).uniform(-1, 1, dimension).astype(np.float32)
    graph = choose_degree(users, 0.1, 0.2)
    cohort, manager = Cohort(users, vector), SimpleClientManager()
    for i in cohort.contexts:
        manager.register(Proxy(i))
    state = RecordDict()
    nothing = ndarrays_to_parameters([np.zeros(1, np.float32)])
    state.array_records[MAIN_PARAMS_RECORD] = parameters_to_arrayrecord(nothing, True)
    state.config_records[MAIN_CONFIGS_RECORD] = ConfigRecord({Key.CURRENT_ROUND: 1})
    context = LegacyContext(
        Context(run_id=1, node_id=0, node_config={}, state=state, run_config={}),
        strategy=Everyone(),
        client_manager=manager,
    )
    workflow = SecAggPlusWorkflow(
        graph.degree + 1, graph.threshold, max_weight=1.0, clipping_range=CLIP
    )
    started = time.perf_counter()
    workflow(cohort, context)  # pyright: ignore[reportArgumentType]
    elapsed = time.perf_counter() - started
    (array,) = context.state.array_records[MAIN_PARAMS_RECORD].values()
    error = float(np.abs(array.numpy() - vector).max())
    if error > 1e-3:
        raise RuntimeError(f"the average of {users} users is off by {error}")
    return {
        "protocol": "Flower's SecAgg+",
        "users": users,
        "dimension": dimension,
        "neighbours": graph.degree,
        "threshold": graph.threshold,
        "bytes_per_client": cohort.sent // users,
        "bytes_server": cohort.sent + cohort.received,
        "seconds_per_client": round(cohort.seconds / users, 5),
        "seconds_server": round(elapsed - cohort.seconds, 4),
    }


def main(
    users: tuple[int, ...] = (10, 100), dimension: int = 61_450, write: Path | None = None
) -> None:
    """Prints a row per number of users."""
    logging.disable(logging.WARNING)
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 0
    rows = []
    for count in users:
        rows.append(measure(count, dimension))
        print(rows[-1], flush=True)
    save(write, {"machine": machine() | {"flwr": version("flwr")}, "cost": rows})


if __name__ == "__main__":
    tyro.cli(main)
