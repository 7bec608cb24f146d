"""The data directories of a node: whose they are, which topics and logs lie in them.

In here: their identity and lock, the files of topics, and choosing a directory for a new log. Not
in here: what is in a log's directory (``log``).
"""
