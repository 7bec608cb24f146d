"""``vq console``.

In here: serving the web console, and its accounts. Not in here: the console itself
(``vq.console``).
"""
