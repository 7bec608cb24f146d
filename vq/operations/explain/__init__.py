"""Answers to an operator's questions: why something does not happen, and the command that mends it.

In here: for each question the facts it needs, and a table of causes that reads them. Not in here:
what is wrong with the cluster as a whole (``cluster.checks``), and the questions of other rooms,
whose answers are facts here.
"""
