"""Reports on a whole cluster: what they read, how they judge, and the files they write.

``lag`` is the first one. ``page``, ``charts``, ``outputs`` and ``progress`` are what all of them
share.
"""
