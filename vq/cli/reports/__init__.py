"""``vq report``.

In here: options of reports, and what they show. Not in here: the reports themselves
(``pyspark_vq``).
"""
