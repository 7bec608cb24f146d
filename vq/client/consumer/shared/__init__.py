"""A member of a shared group: what it gets of the group's journal, reads, and says of messages.

In here: receiving, settling, reading messages by their numbers, calling a listener for them. Not in
here: who is in the group, and which topics it reads (``group``); copies of messages that failed
(``failed_messages``).
"""
