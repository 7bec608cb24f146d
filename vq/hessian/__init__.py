"""Hessian 2, a binary format of objects that comes from Java.

``plain`` has values without classes, for the headers of the wire. ``objects`` adds dates,
references and registered classes, for the contents of messages.
"""
