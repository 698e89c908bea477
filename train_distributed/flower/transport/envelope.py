"""One byte string as Flower carries it: a `query` message, one record in it, one field in that.

Flower sends a message as a tree of objects named by their SHA-256. Here the tree must have exactly
three, nested, of the expected kinds and together no longer than agreed, before any is decoded.
"""

import secrets
import time
from collections.abc import Callable
from typing import Any

from flwr.app import ConfigRecord, Error, Message, Metadata, RecordDict

from train_distributed.flower.transport import flower_internals as flower

RECORD, FIELD, QUERY = "secure-sum", "message", "query"
_UNIQUE = "unique"  # 16 random bytes: no two messages share an object, whose life Flower would mix
_KINDS = ("Message", "RecordDict", "ConfigRecord")
_HEADS = 2**12  # bytes of what surrounds the content


class Foreign(ValueError):
    """Not a query of the secure sum: it is answered with an error, whoever sent it."""


def wrap(content: bytes | Error, **fields: Any) -> tuple[Message, Any, dict[str, bytes]]:
    """A message, its tree and its objects.

    Args:
        content: the byte string, or an error in its place.
        **fields: run_id, src_node_id, dst_node_id, reply_to_message_id, group_id, ttl.
    """
    metadata = Metadata(message_id="", message_type=QUERY, created_at=time.time(), **fields)
    if isinstance(content, bytes):
        values = ConfigRecord({FIELD: content, _UNIQUE: secrets.token_bytes(16)})
        record = RecordDict({RECORD: values})
        message = flower.make_message(metadata=metadata, content=record)
    else:
        message = flower.make_message(metadata=metadata, error=content)
    message.metadata.__dict__["_message_id"] = message.object_id
    objects = {
        name: part.deflate() for name, part in flower.get_all_nested_objects(message).items()
    }
    return message, flower.get_object_tree(message), objects


def unwrap(tree: Any, fetch: Callable[[str], bytes | None], largest: int) -> bytes | None:
    """The byte string of a message.

    Args:
        tree: of its objects.
        fetch: object by name; None while it has not arrived.
        largest: bytes that the content may have.

    Returns:
        None: an object has not arrived.

    Raises:
        Foreign: anything else than one byte string in its place.
    """
    name, contents, left = tree.object_id, dict[str, bytes](), largest + _HEADS
    for depth, kind in enumerate(_KINDS):
        if len(tree.children) != (depth < 2):
            raise Foreign("message must be one record of one field, got others")
        content = fetch(tree.object_id)
        if not content:
            return None
        left -= len(content)
        if left < 0 or flower.get_object_type_from_object_content(content) != kind:
            raise Foreign(f"message must be {_KINDS} of <= {largest} bytes, got others")
        contents[tree.object_id] = content
        tree = tree.children[0] if depth < 2 else tree
    message: Any = flower.inflate_object_from_contents(name, contents)
    found = message.content.config_records.get(RECORD, {}).get(FIELD)
    if not isinstance(found, bytes) or len(message.content) != 1:
        raise Foreign(f"message must hold {RECORD}.{FIELD}, got {sorted(message.content)}")
    return found
