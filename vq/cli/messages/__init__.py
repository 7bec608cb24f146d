"""``vq produce``, ``consume``, ``message`` and ``write``.

In here: the lines that messages are read from and written as. Not in here: archives as files
(``archives``).
"""
