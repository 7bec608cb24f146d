"""From the application to the buffer: what a message passes before it is accepted.

In here: the stages, the appender that takes plain messages, the bounds of the buffer
and who waits for space in it, and one call of ``send_batch``. Not in here: which partition gets a
message (``spread``), and what happens to an accepted one (``queue``, ``send``).
"""
