"""The ``vq`` command."""
