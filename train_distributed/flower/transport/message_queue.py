"""Messages in and out of a SuperLink's state: one question at a time to each node."""

import secrets
import threading
import time
from dataclasses import dataclass
from typing import Any

from train_distributed.flower.transport import flower_internals as flower
from train_distributed.flower.transport.envelope import unwrap, wrap

COLLECT_SECONDS = 0.05
BEAT_SECONDS = 10
KEPT_SECONDS = 86_400  # that Flower keeps a question; the operator takes it back long before


@dataclass
class _Question:
    node: int
    message: str  # Flower's name of it
    reply: str | None = None  # and of the answer, once the node has announced one


class MessageQueue:
    """Sends, collects, forgets."""

    def __init__(self, state: Any, largest: int) -> None:
        self._state, self._largest = state, largest
        self._run = state.create_run(
            "",
            "",
            "",
            {},
            flower.NOOP_FEDERATION_ID,
            None,
            flower.NOOP_FLWR_AID,
            flower.TaskType.SERVER_APP,
        )
        (run,) = state.get_run_info(run_ids=[self._run])
        self._task = run.primary_task_id
        state.claim_task(self._task)
        state.activate_task(self._task)
        self._beaten = time.monotonic()
        self._asked: dict[int, _Question] = {}
        self._refused: dict[int, str] = {}  # node -> words, of answers that are errors
        self._lock = threading.RLock()

    def here(self) -> list[int]:
        """Nodes that are connected now."""
        return sorted(self._state.get_nodes(self._run))

    def send(self, node: int, request: bytes) -> None:
        """Puts a question where its node fetches it; an older one to this node is forgotten."""
        self.forget(node)
        message, tree, objects = wrap(
            request,
            run_id=self._run,
            src_node_id=flower.SUPERLINK_NODE_ID,
            dst_node_id=node,
            reply_to_message_id="",
            group_id=secrets.token_hex(16),  # so nobody but its node can name the message
            ttl=KEPT_SECONDS,
        )
        with self._lock:
            session = self._state.start_session(self._run)
            stored, missing = self._state.store_message_and_object_tree(
                flower.remove_content_from_message(message), tree, session
            )
            if not stored:
                return  # the node has never been here
            for name in missing:
                self._state.store_object(self._run, session, name, objects[name])
            self._asked[node] = _Question(node, message.metadata.message_id)

    def forget(self, node: int) -> None:
        """Takes back what was asked of a node."""
        with self._lock:
            question = self._asked.pop(node, None)
            if question is None:
                return
            self._state.delete_messages({question.message})
            for name in (question.message, question.reply):
                if name is not None:
                    self._state.object_store.delete(name)

    def collect(self) -> list[tuple[int, bytes | None, str]]:
        """(node, answer, "") or (node, None, why not), of those that have answered since."""
        time.sleep(COLLECT_SECONDS)
        if time.monotonic() - self._beaten > BEAT_SECONDS:
            self._state.acknowledge_task_heartbeat(self._task)
            self._beaten = time.monotonic()
        with self._lock:
            self.note()
            refused, self._refused = self._refused, {}
            arrived = [q.node for q in self._asked.values() if q.reply is not None]
        found: list[tuple[int, bytes | None, str]] = [(n, None, w) for n, w in refused.items()]
        for node in arrived:
            with self._lock:
                found += self._read(node)
        return found

    def note(self) -> None:
        """Notes which questions have an answer.

        Needed before a node leaves: of a node that is away Flower says so in place of its answer.
        """
        with self._lock:
            asked = {q.message: q for q in self._asked.values() if q.reply is None}
            for reply in self._state.get_message_res(set(asked), self._run) if asked else []:
                question = asked[reply.metadata.reply_to_message_id]
                if reply.metadata.src_node_id == flower.SUPERLINK_NODE_ID:
                    # Flower's own words for a node that is away; it may come back in time
                    self._state.object_store.delete(reply.metadata.message_id)
                    continue
                question.reply = reply.metadata.message_id
                if reply.has_error():
                    self._refused[question.node] = str(reply.error.reason)[:300]
                    self.forget(question.node)

    def _read(self, node: int) -> list[tuple[int, bytes | None, str]]:
        question = self._asked.get(node)
        if question is None or question.reply is None:
            return []
        store = self._state.object_store
        try:
            answer = unwrap(store.get_object_tree(question.reply), store.get, self._largest)
        except Exception as error:  # whatever a node can make of its objects
            self.forget(node)
            return [(node, None, f"{type(error).__name__}: {error}"[:300])]
        if answer is None:
            return []
        self.forget(node)
        return [(node, answer, "")]
