"""Which messages of a topic a reader wants: tags, an expression, or a class of the application.

Pure. ``value`` has the one value that everybody hands on, ``syntax`` reads expressions and
``conditions`` says what they mean. Not in here: loops over records and messages.
"""

from vq.message_filter.conditions import Subject
from vq.message_filter.value import ALL, TAG_SEPARATOR, Filter, MessageFilter, Wanting, Where

__all__ = ["ALL", "TAG_SEPARATOR", "Filter", "MessageFilter", "Subject", "Wanting", "Where"]
