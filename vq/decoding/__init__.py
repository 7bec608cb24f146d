"""What the bytes of a message say, for people who look at it.

In here: formats, and protobuf by a descriptor set. Decisions; no class of an application is built.
Not in here: objects for programs (``vq.serializers``).
"""
