"""What a broker knows of users and of rules, whom it takes, and what they may do.

In here: the mirrors of users and of rules, the broker's side of HELLO's mechanisms, what ends
connections of users that are gone, what each request needs, and the decision. Not in here: the door
that asks (``serving.dispatcher``), and pure decisions (``vq.security``).
"""
