"""A log of which the broker itself is the reader: what its master notes there, and sends from it.

In here: reading such a log in order, appending notes to it, and delivering what it holds to other
partitions, once, whoever leads next. Not in here: what the notes mean (``timers``,
``transactions``), and how logs are stored, copied and deleted (as all others).
"""
