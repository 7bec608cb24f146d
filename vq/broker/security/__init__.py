"""What a broker knows of users, and whom it takes.

In here: the mirror of users, the broker's side of HELLO's mechanisms, and what ends connections of
users that are gone. Not in here: the door of requests (``broker.serving``), and pure decisions
(``vq.security``).
"""
