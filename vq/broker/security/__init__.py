"""What a broker knows of users, rules and quotas, whom it takes, and what they may do.

In here: the mirrors of users, rules and quotas, the accounts of what was used, the broker's side of
HELLO's mechanisms, what ends connections of users that are gone, what each request needs, and the
decision. Not in here: the door that asks (``serving.dispatcher``), the connection that charges
(``serving.metered_connection``), and pure decisions (``vq.security``).
"""
