"""Errors over HTTP: one table from classes of errors to statuses, and the problem document.

RFC 9457, as ``application/problem+json``::

    {"type": "urn:vq:problem:UnknownTopic", "title": "Not Found", "status": 404,
     "detail": "topic 'order' does not exist", "code": "UnknownTopic", "vq_status": 20,
     "outcome": "refused", "retriable": false, "hint": "create it: …", "details": {}}

``code`` is the name of the error in ``vq.errors``, or of one that only the gateway has (here).
``outcome`` is ``refused``: certainly not done; or ``unknown``: perhaps done. Pure.
"""

import http
import json
from collections.abc import Mapping
from typing import Any, Final

from vq import errors
from vq.coordination.groups.contract import MemberDiffers
from vq.errors import Refused, VqError

CONTENT_TYPE: Final = "application/problem+json"
_TYPE: Final = "urn:vq:problem:"
#: Longest ``detail``: an error may quote what a request said.
_DETAIL_CHARS_MAX: Final = 2_000


class TokenRequired(VqError):
    """A request has no token, or one that the gateway does not know."""

    hint = "send the header `Authorization: Bearer TOKEN`; `vq gateway token` makes a token"


class RightRequired(VqError):
    """The token of a request does not have the right that it needs."""

    hint = "have the operator of the gateway add the right to the token's entry"


class ConsumerGone(VqError):
    """There is no consumer of this id any more: its lease ended, or it was deleted."""

    hint = (
        "create a consumer again with POST /v1/consumers: it goes on behind the last commit; "
        "messages that were not committed are delivered again"
    )


class ReceiveTakenOver(VqError):
    """A later request receives for the same consumer, so this one ended."""

    hint = "let one request at a time receive for a consumer"


class AtLimit(Refused):
    """The gateway does not take more of something now."""

    retriable = True
    hint = "send the request again after the time in Retry-After"


class GatewayStopping(Refused):
    """The gateway is being stopped."""

    retriable = True
    hint = "send the request again after the time in Retry-After, to the gateway's successor"


class GatewayFailed(VqError):
    """An unexpected error inside the gateway; its log has the trace."""


class BodyTooLarge(VqError):
    """The body of a request has more bytes than the gateway takes."""

    hint = "send less in one request"


class BodyTooSlow(VqError):
    """The body of a request was not whole in time."""

    retriable = True


class BodyRefused(VqError):
    """The body of a request is not what the route takes."""

    hint = "/openapi.json of the gateway describes what each route takes"


class WrongContentType(VqError):
    """The body of a request has another type than the route takes."""


class HostRefused(VqError):
    """The header ``Host`` of a request is not a name of the gateway."""

    hint = "reach it under its name; `--allowed-host` adds one"


class RouteUnknown(VqError):
    """There is no such route."""

    hint = "/openapi.json of the gateway has all routes"


class MethodRefused(VqError):
    """The route does not have this method."""

    hint = "/openapi.json of the gateway has all routes"


#: The status of each class, and of those below it that have none of their own.
STATUSES: Final[Mapping[type[VqError], int]] = {
    VqError: 500,
    # What the gateway itself says
    TokenRequired: 401,
    RightRequired: 403,
    ConsumerGone: 410,
    ReceiveTakenOver: 409,
    AtLimit: 429,
    GatewayStopping: 503,
    GatewayFailed: 500,
    BodyTooLarge: 413,
    BodyTooSlow: 408,
    BodyRefused: 400,
    WrongContentType: 415,
    HostRefused: 421,
    RouteUnknown: 404,
    MethodRefused: 405,
    # The request
    errors.InvalidArgument: 400,
    errors.InvalidState: 409,
    errors.UnknownTopic: 404,
    errors.UnknownPartition: 404,
    errors.MessageTooLarge: 413,
    errors.BatchTooLarge: 413,
    errors.FrameTooLarge: 413,
    errors.OffsetOutOfRange: 416,
    errors.OffsetNotBoundary: 400,
    errors.PermissionRefused: 403,
    errors.TopicClosed: 409,
    errors.GenerationStale: 409,
    errors.GroupStopped: 409,
    errors.LeaseLost: 409,
    MemberDiffers: 409,
    errors.TransactionRefused: 409,
    errors.LogTruncated: 409,
    # Back-pressure
    errors.BufferFull: 429,
    errors.Busy: 429,
    errors.Throttled: 429,
    errors.DiskFull: 503,
    # The cluster cannot do it now
    errors.NotSent: 503,
    errors.NotMaster: 503,
    errors.PartitionReadOnly: 503,
    errors.PartitionRangeElsewhere: 503,
    errors.PartitionFailed: 503,
    errors.PartitionQuarantined: 503,
    errors.NotEnoughInSync: 503,
    errors.ShuttingDown: 503,
    errors.StaleEpoch: 503,
    errors.HandOverFailed: 503,
    errors.FetchSessionLost: 503,
    errors.Unreachable: 503,
    errors.CoordinationError: 503,
    # The gateway and a broker do not understand each other
    Refused: 502,
    errors.ProtocolError: 502,
    # Perhaps done
    errors.OutcomeUnknown: 504,
}
#: How long a client is to wait, in seconds, where it is not this usual time.
RETRY_AFTER_S: Final = 1
_LONGER_S: Final[Mapping[type[VqError], int]] = {
    errors.DiskFull: 10,
    errors.NotEnoughInSync: 2,
    errors.CoordinationError: 2,
    GatewayStopping: 5,
}


def status_of(error: VqError) -> int:
    """Return the HTTP status of an error."""
    return next(STATUSES[each] for each in type(error).__mro__ if each in STATUSES)


def retry_after_s(error: VqError) -> int | None:
    """Return after how many seconds to try again; None: the answer has no such header."""
    if not error.retriable or status_of(error) not in {429, 503}:
        return None
    return next(
        (_LONGER_S[each] for each in type(error).__mro__ if each in _LONGER_S), RETRY_AFTER_S
    )


def outcome_of(error: VqError) -> str:
    """Return whether what was asked for is certainly not done, or perhaps done."""
    is_refused = isinstance(error, Refused) or status_of(error) < 500
    return "refused" if is_refused else "unknown"


def problem_of(error: VqError, **more: Any) -> dict[str, Any]:
    """Return the problem document of an error; ``more`` are members that only some have."""
    status = status_of(error)
    message = error.message
    if len(message) > _DETAIL_CHARS_MAX:
        message = message[:_DETAIL_CHARS_MAX] + "…"
    return {
        "type": f"{_TYPE}{type(error).__name__}",
        "title": http.HTTPStatus(status).phrase,
        "status": status,
        "detail": message,
        "code": type(error).__name__,
        "vq_status": error.status,
        "outcome": outcome_of(error),
        "retriable": error.retriable,
        "hint": error.hint,
        "details": error.details,
        **more,
    }


def problem_headers(error: VqError) -> dict[str, str]:
    """Return the headers of an answer that tells an error."""
    found = {
        "Content-Type": CONTENT_TYPE,
        "Cache-Control": "no-store",
        "X-Content-Type-Options": "nosniff",
    }
    after_s = retry_after_s(error)
    if after_s is not None:
        found["Retry-After"] = str(after_s)
    if isinstance(error, TokenRequired):
        found["WWW-Authenticate"] = "Bearer"
    return found


def as_json(value: object) -> bytes:
    """Return a value as JSON, in UTF-8; what UTF-8 does not have is escaped."""
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:  # a lone surrogate, quoted from a request
        return json.dumps(value, separators=(",", ":")).encode()
