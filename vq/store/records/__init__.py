"""The bytes of records and batches, and of what is kept beside them: encoded, decoded, checked.

In here: plain values and buffers, and the loops in C. Not in here: files and their names in a
log's directory beyond ``format``, and what a log does.
"""
