"""The operations that there is a door to: those of every administrator, and the console's own."""

from collections.abc import Mapping
from typing import Any, Final

from vq.console.acts.messages import browse_messages, send_message
from vq.operations.operation import Effect, Operation, Resource, Right, row, rows_of
from vq.operations.table import Operations

Row = Operation[..., Any, Any]


class OwnOperations:
    """Rows beside those of ``vq.operations.table``; only the console offers them."""

    browse_messages = row(browse_messages, Effect.ASK, Right.READ, Resource.TOPIC, "consume")
    send_message = row(send_message, Effect.ACT, Right.WRITE, Resource.TOPIC, "produce")


#: Each by its name.
OPERATIONS: Final[Mapping[str, Row]] = {
    each.name: each for each in (*rows_of(Operations), *rows_of(OwnOperations))
}
