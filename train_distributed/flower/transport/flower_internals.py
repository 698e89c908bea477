"""Names of Flower that are not its public API; no other file of the product imports them.

Written against release `RELEASE`. Another release may move or change any of them: then read here
what is used, compare it with that release, run the tests of `transport`, and state it here.
"""

# ruff: noqa: F401

import importlib
from types import ModuleType
from typing import Any

from flwr.app.message import remove_content_from_message
from flwr.app.message.message import make_message
from flwr.common.constant import (
    NOOP_ACCOUNT_NAME,
    NOOP_FLWR_AID,
    SUPERLINK_NODE_ID,
    TIMESTAMP_HEADER,
    TIMESTAMP_TOLERANCE,
    ErrorCode,
)
from flwr.common.serde import message_to_proto
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PushMessagesRequest,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedRequest,
    PullObjectRequest,
    PushObjectRequest,
)
from flwr.proto.node_pb2 import Node
from flwr.supercore.constant import (
    FLEET_HTTP_PUBLIC_KEY_HEADER,
    FLEET_HTTP_SIGNATURE_HEADER,
    FLWR_IN_MEMORY_DB_NAME,
    NOOP_FEDERATION_ID,
    TaskType,
)
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    get_object_type_from_object_content,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.primitives.asymmetric import (
    bytes_to_public_key,
    public_key_to_bytes,
    verify_signature,
)
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

RELEASE = "1.41"  # of Flower, without the last number


def fleet_handlers() -> ModuleType:
    """SuperLink's handlers of the fleet calls; a node does not import them."""
    return importlib.import_module("flwr.superlink.servicer.fleet.fleet_handlers")


def memory_state() -> Any:
    """A fresh SuperLink state with its objects, in memory."""
    from flwr.superlink import config_loader

    _, factory = config_loader.get_objectstore_linkstate_factories(
        FLWR_IN_MEMORY_DB_NAME, config_loader.get_federation_manager()
    )
    return factory.state()
