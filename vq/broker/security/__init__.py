"""What a broker knows of users, whom it takes, and who may do what.

In here: the mirrors of users and rules, the broker's side of HELLO's mechanisms, what a request
needs and the decision, and what ends connections of users that are gone. Not in here: the door of
requests (``broker.serving``), and pure decisions (``vq.security``).
"""
