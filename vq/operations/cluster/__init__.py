"""The whole cluster.

In here: its status, settings and checks, and facts of everything with few requests. Not in here:
what concerns one subject alone.
"""
