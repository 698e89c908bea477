"""A node's connection to a SuperLink: the fleet calls that a node without apps needs."""

import contextlib
import datetime
import re
import time
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any, Self

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import Error

from train_distributed.flower.transport import flower_internals as flower
from train_distributed.flower.transport.envelope import QUERY, Foreign, unwrap, wrap
from train_distributed.flower.transport.frames import Beat

HEARTBEAT_SECONDS = 10.0  # Flower's least; a node is away after two without
OBJECT_TRIES = 50
CLOCK_SECONDS = (
    290.0  # by which clocks must differ for a signed time to be refused: Flower says 300
)
_TLS = {  # words of OpenSSL -> ours
    "has expired": "the operator's certificate has expired, or this machine's clock is ahead: "
    "the operator runs `federation renew`",
    "not yet valid": "the operator's certificate is not valid yet: this machine's clock is behind",
    "mismatch": "the operator's certificate is not for this address: `federation renew --hosts`",
}
_OTHER = "the operator's certificate is not this ca.pem's: another operator, or a new authority"


class Refused(Exception):
    """The SuperLink does not take this node, in words."""


@dataclass(frozen=True)
class Question:
    """A query, and whom to answer."""

    content: bytes
    metadata: Any


class Fleet:
    """Activated on entry, deactivated on exit.

    Raises:
        Refused: the node's key is not registered, or in use.
        httpx.HTTPError: no connection.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        """Reads keys; connects when it is entered.

        Args:
            config: address (host:port), ca (PEM), key (OpenSSH, P-384), largest (bytes).
        """
        private = load_ssh_private_key(config["key"].encode(), None)
        if not isinstance(private, ec.EllipticCurvePrivateKey):
            raise Refused(f"node key must be P-384, got {type(private).__name__}")
        self._public = flower.public_key_to_bytes(private.public_key())
        self._client = flower.FleetHttpClient.from_server_address(
            config["address"],
            False,
            config["ca"].encode(),
            interceptors=[flower.NodeAuthHttpInterceptor(private, private.public_key())],
        )
        self._largest = int(config["largest"])
        self._node = flower.Node()
        self._due = Beat(0.8 * HEARTBEAT_SECONDS)

    def __enter__(self) -> Self:
        request = flower.ActivateNodeRequest(
            public_key=self._public, heartbeat_interval=HEARTBEAT_SECONDS
        )
        try:
            self._node = flower.Node(node_id=self._client.ActivateNode(request).node_id)
        except httpx.HTTPStatusError as error:
            self._client.close()
            if error.response.status_code == httpx.codes.UNAUTHORIZED:
                date = error.response.headers.get("date")
                now = datetime.datetime.now(datetime.UTC)
                raise Refused(of_unauthorized(date, now)) from error
            raise Refused("another node with this key is connected, or was until now") from error
        except BaseException:
            self._client.close()
            raise
        self._due.due()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(httpx.HTTPError):
            self._client.DeactivateNode(flower.DeactivateNodeRequest(node_id=self._node.node_id))
        self._client.close()

    def beat(self) -> None:
        """Says that this node is still here, if it is time to.

        Raises:
            Refused: the SuperLink has forgotten it.
        """
        if self._due.due():
            request = flower.SendNodeHeartbeatRequest(
                node=self._node, heartbeat_interval=HEARTBEAT_SECONDS
            )
            if not self._client.SendNodeHeartbeat(request).success:
                raise Refused("the operator has forgotten this node")

    def pull(self) -> Question | None:
        """The next question, if there is one.

        Raises:
            Foreign: something else came; it has been answered with an error.
        """
        self.beat()
        response = self._client.PullMessages(flower.PullMessagesRequest(node=self._node))
        if not response.messages_list:
            return None
        metadata = response.messages_list[0].metadata
        try:
            tree = response.message_object_trees[0]
            if metadata.message_type != QUERY:
                raise Foreign(f"message must be a {QUERY}, got {metadata.message_type!r}")
            content = unwrap(tree, lambda name: self._object(metadata.run_id, name), self._largest)
            if content is None:
                return None
        except Exception as error:  # whatever a SuperLink can send
            if isinstance(error, httpx.HTTPError):
                raise
            foreign = error if isinstance(error, Foreign) else Foreign(type(error).__name__)
            self._reply(
                metadata, Error(flower.ErrorCode.UNKNOWN, f"this node runs no apps: {foreign}")
            )
            raise foreign from error
        self._confirm(metadata.run_id, tree.object_id)
        return Question(content, metadata)

    def push(self, question: Question, answer: bytes) -> None:
        """Sends the party's answer to a question.

        Raises:
            httpx.HTTPError: it could not be delivered.
        """
        self._reply(question.metadata, answer)

    def _object(self, run: int, name: str) -> bytes | None:
        request = flower.PullObjectRequest(node=self._node, run_id=run, object_id=name)
        for _ in range(OBJECT_TRIES):
            response = self._client.PullObject(request)
            if response.object_available or not response.object_found:
                return response.object_content
            time.sleep(0.2)  # the question is announced before its parts have arrived
        return None

    def _confirm(self, run: int, name: str) -> None:
        request = flower.ConfirmMessageReceivedRequest(
            node=self._node, run_id=run, message_object_id=name
        )
        self._client.ConfirmMessageReceived(request)

    def _reply(self, to: Any, content: bytes | Error) -> None:
        message, tree, objects = wrap(
            content,
            run_id=to.run_id,
            src_node_id=self._node.node_id,
            dst_node_id=flower.SUPERLINK_NODE_ID,
            reply_to_message_id=to.message_id,
            group_id=to.group_id,
            ttl=max(1.0, to.created_at + to.ttl - time.time()),
        )
        response = self._client.PushMessages(
            flower.PushMessagesRequest(
                node=self._node,
                messages_list=[
                    flower.message_to_proto(flower.remove_content_from_message(message))
                ],
                message_object_trees=[tree],
                clientapp_runtime_list=[0.0],
            )
        )
        for name in response.objects_to_push:
            self._client.PushObject(
                flower.PushObjectRequest(
                    node=self._node,
                    run_id=to.run_id,
                    object_id=name,
                    object_content=objects[name],
                    session_id=response.session_id,
                )
            )


def of_tls(text: str) -> str:
    """The cause of a failed TLS handshake, from OpenSSL's words."""
    found = next((ours for theirs, ours in _TLS.items() if re.search(theirs, text)), _OTHER)
    return f"{found} ({text})"


def of_unauthorized(date: str | None, now: datetime.datetime) -> str:
    """The cause of a refusal of a signed request: the key, or the time that was signed with it.

    Args:
        date: the answer's Date header, the operator's clock.
        now: this machine's clock.
    """
    try:
        away = (now - parsedate_to_datetime(date or "")).total_seconds()
    except (ValueError, TypeError, IndexError):
        away = 0.0
    if abs(away) > CLOCK_SECONDS:
        ahead = "ahead of" if away > 0 else "behind"
        return f"this machine's clock is {abs(away):.0f} s {ahead} the operator's: set it"
    return "this node's key is not registered with the operator: it has another invitation, or keys"
