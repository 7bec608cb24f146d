"""``python -m vq``: the ``vq`` command, where its directory is not on PATH."""

from vq.cli.entry import main

main()
