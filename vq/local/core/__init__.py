"""A local queue without its API: messages come in, one commit stores them, takers get them.

In here: what decides (``state``), the thread that commits, and who waits. Not in here: the bytes on
disk (``files``), and what applications call (``queue``).

    waits, keys, state     who waits; idempotency keys; where each message is
    base                   what all parts use
    puts                   what a put stores, room, keys
    commits                what is durable, and when
    takes                  takers, leases, retries
    core                   the parts of one queue, and its thread
"""
