"""``vq topic``.

In here: its commands, and the options that are settings of topics. Not in here: messages of topics
(``messages``).
"""
