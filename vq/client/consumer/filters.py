"""The filter of a subscription: the tags it names."""

from vq import limits
from vq.client.kinds import check_text
from vq.errors import InvalidArgument
from vq.model import TAG_SEPARATOR
from vq.shown import shown


def tags_of(message_filter: str) -> tuple[str, ...]:
    """Return the tags that a filter such as ``a || b`` names.

    Raises:
        InvalidArgument: It names none, too many, or one that no message can have.
    """
    check_text("message_filter", message_filter)
    tags = tuple(tag.strip() for tag in message_filter.split(TAG_SEPARATOR) if tag.strip())
    if not tags:
        raise InvalidArgument(f"message_filter {shown(message_filter)} names no tag")
    if len(tags) > limits.FILTER_TAGS_MAX:
        raise InvalidArgument(
            f"message_filter names {len(tags)} tags; at most {limits.FILTER_TAGS_MAX} are taken"
        )
    for tag in tags:
        try:
            size = len(tag.encode())
        except UnicodeEncodeError as error:
            raise InvalidArgument(
                f"tag {shown(tag)} of message_filter is no text: {error}"
            ) from error
        if size > limits.TAG_BYTES_MAX:
            raise InvalidArgument(
                f"tag {shown(tag)} of message_filter has {size} bytes; no tag has more than "
                f"{limits.TAG_BYTES_MAX}"
            )
    return tags
