"""The gate in front of the SuperLink: eight calls of registered nodes, judged before their body."""

import asyncio
import datetime
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest

flwr = pytest.importorskip("flwr", reason="needs the flower extra")

from cryptography.hazmat.primitives.asymmetric import ec  # noqa: E402
from flwr.app.message import remove_content_from_message  # noqa: E402
from flwr.common.constant import NOOP_ACCOUNT_NAME, NOOP_FLWR_AID, TIMESTAMP_HEADER  # noqa: E402
from flwr.common.serde import message_to_proto  # noqa: E402
from flwr.proto.fleet_pb2 import (  # noqa: E402
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PullMessagesResponse,
    PushMessagesRequest,
    PushMessagesResponse,
)
from flwr.proto.message_pb2 import PushObjectRequest  # noqa: E402
from flwr.proto.node_pb2 import Node  # noqa: E402
from flwr.supercore.constant import (  # noqa: E402
    FLEET_HTTP_PUBLIC_KEY_HEADER,
    FLEET_HTTP_SIGNATURE_HEADER,
    FLWR_IN_MEMORY_DB_NAME,
)
from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message  # noqa: E402
from flwr.supercore.protobuf.translation import PROTOBUF_REQUEST_TYPES  # noqa: E402
from flwr.superlink.config_loader import (  # noqa: E402
    get_federation_manager,
    get_objectstore_linkstate_factories,
)

from train_distributed.flower.transport import envelope  # noqa: E402
from train_distributed.flower.transport.fleet import of_tls, of_unauthorized  # noqa: E402
from train_distributed.flower.transport.fleet_api import OVERHEAD, FleetApi  # noqa: E402
from train_distributed.flower.transport.message_queue import MessageQueue  # noqa: E402

LARGEST = 10_000
OPEN = {
    f"/v1/fleet/{name}"
    for name in (
        "activate-node",
        "deactivate-node",
        "send-node-heartbeat",
        "pull-messages",
        "push-messages",
        "push-object",
        "pull-object",
        "confirm-message-received",
    )
}


class World:
    """A SuperLink's state with two nodes, behind a gate."""

    def __init__(self) -> None:
        _, factory = get_objectstore_linkstate_factories(
            FLWR_IN_MEMORY_DB_NAME, get_federation_manager()
        )
        self.state = factory.state()
        self.keys = [ec.generate_private_key(ec.SECP384R1()) for _ in range(3)]
        public = [public_key_to_bytes(key.public_key()) for key in self.keys]
        self.public = public
        self.nodes = [
            self.state.create_node(NOOP_FLWR_AID, NOOP_ACCOUNT_NAME, key, 0.0) for key in public[:2]
        ]
        nodes = dict(zip(public[:2], self.nodes, strict=True))
        self.queue = MessageQueue(self.state, LARGEST)
        self.api = FleetApi(self.state, nodes, LARGEST, self.queue.note)
        self.read, self.proven = 0, list[bytes]()

    def signed(self, who: int, **changes: str) -> dict[str, str]:
        stamp = changes.get("stamp", datetime.datetime.now(datetime.UTC).isoformat())
        signature = sign_message(self.keys[who], changes.get("signs", stamp).encode())
        return {
            FLEET_HTTP_PUBLIC_KEY_HEADER: b64encode(self.public[who]).decode(),
            FLEET_HTTP_SIGNATURE_HEADER: b64encode(signature).decode(),
            TIMESTAMP_HEADER: stamp,
        }

    def call(
        self,
        path: str,
        body: bytes,
        headers: dict[str, str],
        method: str = "POST",
        length: int | None = None,
    ) -> tuple[int, bytes]:
        size = {"content-length": str(len(body) if length is None else length)}
        lines = [(n.lower().encode(), v.encode()) for n, v in (size | headers).items()]
        scope = {"type": "http", "method": method, "path": path, "headers": lines}
        scope["state"] = {"prove": self.proven.append}
        sent: list[dict[str, Any]] = []
        self.read = 0

        async def receive() -> dict[str, Any]:
            self.read += 1
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(event: dict[str, Any]) -> None:
            sent.append(event)

        asyncio.run(self.api(scope, receive, send))
        return sent[0]["status"], sent[1]["body"]

    def send(self, call: str, request: Any) -> bytes:
        """What the first node is answered."""
        path = f"/v1/fleet/{call}"
        status, answer = self.call(path, request.SerializeToString(), self.signed(0))
        assert status == 200, call
        return answer


@pytest.fixture
def world() -> World:
    return World()


def test_every_other_call_of_flower_is_not_found(world: World) -> None:
    """All control and runtime calls that this Flower knows, and the fleet's own for apps."""
    paths = {path for _, path in PROTOBUF_REQUEST_TYPES} | {
        "/",
        "/docs",
        "/health",
        "/openapi.json",
    }
    assert paths > OPEN
    assert len(paths - OPEN) > 50
    for path in sorted(paths - OPEN):
        assert world.call(path, b"", world.signed(0)) == (404, b""), path
        assert world.read == 0
    for path in ("/v1/fleet/pull-messages/", "//v1/fleet/pull-messages", "pull-messages", ""):
        assert world.call(path, b"", world.signed(0))[0] == 404
    for method in ("GET", "PUT", "HEAD", "OPTIONS"):
        assert world.call("/v1/fleet/pull-messages", b"", world.signed(0), method)[0] == 404


def test_strangers_are_refused_before_their_body_is_read(world: World) -> None:
    early = (datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=1)).isoformat()
    body = ActivateNodeRequest(
        public_key=world.public[2], heartbeat_interval=30
    ).SerializeToString()
    for headers in (
        {},
        world.signed(2),
        world.signed(0, stamp=early),
        world.signed(0, signs="another time"),
        world.signed(0, stamp="yesterday"),
        world.signed(0) | {FLEET_HTTP_SIGNATURE_HEADER: "???"},
        world.signed(0) | {FLEET_HTTP_PUBLIC_KEY_HEADER: "e30="},
        world.signed(0) | {TIMESTAMP_HEADER: "2026-01-01T00:00:00"},
    ):
        assert world.call("/v1/fleet/activate-node", body, headers) == (401, b"")
        assert world.read == 0


def test_lengths_are_judged_before_the_body_is_read(world: World) -> None:
    small, large = "/v1/fleet/push-messages", "/v1/fleet/push-object"
    for path, length, status in (
        (small, OVERHEAD + 1, 413),
        (large, OVERHEAD + LARGEST + 1, 413),
        (small, 10**30, 413),
    ):
        assert world.call(path, b"", world.signed(0), length=length)[0] == status
        assert world.read == 0
    chunked = world.signed(0) | {"transfer-encoding": "chunked"}
    assert world.call(small, b"", chunked)[0] == 411
    assert world.call(small, b"", world.signed(0) | {"content-length": "-1"})[0] == 411


def test_a_node_speaks_for_itself(world: World) -> None:
    def pull(who: int, node: int) -> tuple[int, bytes]:
        body = PullMessagesRequest(node=Node(node_id=node)).SerializeToString()
        return world.call("/v1/fleet/pull-messages", body, world.signed(who))

    body = ActivateNodeRequest(
        public_key=world.public[0], heartbeat_interval=30
    ).SerializeToString()
    assert world.call("/v1/fleet/activate-node", body, world.signed(1))[0] == 401
    assert world.call("/v1/fleet/activate-node", body, world.signed(0))[0] == 200
    assert world.call("/v1/fleet/activate-node", body, world.signed(0))[0] == 409  # is here already
    assert world.queue.here() == [world.nodes[0]]
    world.queue.send(world.nodes[0], b"question")
    assert pull(1, world.nodes[0])[0] == 401
    status, answer = pull(0, world.nodes[0])
    assert status == 200
    assert len(PullMessagesResponse.FromString(answer).messages_list) == 1
    away = DeactivateNodeRequest(node_id=world.nodes[0]).SerializeToString()
    assert world.call("/v1/fleet/deactivate-node", away, world.signed(1))[0] == 401
    assert world.call("/v1/fleet/deactivate-node", away, world.signed(0))[0] == 200
    assert world.queue.here() == []


def test_the_last_answer_of_a_node_that_leaves_at_once_arrives(world: World) -> None:
    """Flower gives out no answers of a node that is away."""
    node, send = world.nodes[0], world.send
    send("activate-node", ActivateNodeRequest(public_key=world.public[0], heartbeat_interval=30))
    world.queue.send(node, b"is it over?")
    pulled = send("pull-messages", PullMessagesRequest(node=Node(node_id=node)))
    asked = PullMessagesResponse.FromString(pulled).messages_list[0].metadata
    message, tree, objects = envelope.wrap(
        b"it is",
        run_id=asked.run_id,
        src_node_id=node,
        dst_node_id=asked.src_node_id,
        reply_to_message_id=asked.message_id,
        group_id=asked.group_id,
        ttl=60.0,
    )
    announced = PushMessagesRequest(
        node=Node(node_id=node),
        messages_list=[message_to_proto(remove_content_from_message(message))],
        message_object_trees=[tree],
        clientapp_runtime_list=[0.0],
    )
    pushed = PushMessagesResponse.FromString(send("push-messages", announced))
    for name in pushed.objects_to_push:
        part = PushObjectRequest(
            node=Node(node_id=node),
            run_id=asked.run_id,
            object_id=name,
            object_content=objects[name],
            session_id=pushed.session_id,
        )
        send("push-object", part)
    send("deactivate-node", DeactivateNodeRequest(node_id=node))
    assert world.queue.collect() == [(node, b"it is", "")]


def test_broken_bodies_are_refused(world: World) -> None:
    for body in (b"\xff", b"\0" * 100, bytes(range(256))):
        for path in sorted(OPEN):
            status, answer = world.call(path, body, world.signed(0))
            assert status in (401, 409)
            assert answer == b""


def test_an_envelope_holds_one_byte_string(tmp_path: Path) -> None:
    fields = {
        "run_id": 1,
        "src_node_id": 1,
        "dst_node_id": 2,
        "reply_to_message_id": "",
        "ttl": 9.0,
    }
    _, tree, objects = envelope.wrap(b"x" * 100, group_id="", **fields)
    assert envelope.unwrap(tree, objects.get, 100) == b"x" * 100
    assert envelope.unwrap(tree, lambda name: None, 100) is None
    _, _, others = envelope.wrap(b"x" * 100, group_id="", **fields)
    assert not objects.keys() & others.keys()
    with pytest.raises(envelope.Foreign, match="must be"):
        envelope.unwrap(tree, lambda name: objects[name] + bytes(10**4), 100)
    with pytest.raises(envelope.Foreign, match=r"must be \('Message', 'RecordDict'"):
        envelope.unwrap(tree.children[0], objects.get, 100)
    _, tree, objects = envelope.wrap(flwr.app.Error(1, "no"), group_id="", **fields)
    with pytest.raises(envelope.Foreign, match="one record of one field"):
        envelope.unwrap(tree, objects.get, 100)


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        ("certificate verify failed: unable to get local issuer", "is not this ca.pem's"),
        ("certificate verify failed: self-signed certificate in chain", "is not this ca.pem's"),
        ("certificate verify failed: certificate has expired", "has expired"),
        ("certificate verify failed: certificate is not yet valid", "clock is behind"),
        ("Hostname mismatch, certificate is not valid for 'x'", "is not for this address"),
        ("IP address mismatch, certificate is not valid for '::1'", "is not for this address"),
    ],
)
def test_a_failed_handshake_is_named(words: str, cause: str) -> None:
    assert cause in of_tls(words)


@pytest.mark.parametrize(
    ("date", "cause"),
    [
        ("Sun, 22 Nov 2026 05:00:00 GMT", "key is not registered"),
        ("Sun, 22 Nov 2026 04:50:00 GMT", "clock is 600 s ahead of the operator's: set it"),
        ("Sun, 22 Nov 2026 06:00:00 GMT", "clock is 3600 s behind the operator's: set it"),
        ("nonsense", "key is not registered"),
        (None, "key is not registered"),
    ],
)
def test_a_refused_signature_is_named(date: str | None, cause: str) -> None:
    now = datetime.datetime(2026, 11, 22, 5, 0, tzinfo=datetime.UTC)
    assert cause in of_unauthorized(date, now)
