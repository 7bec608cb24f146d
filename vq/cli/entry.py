"""Entry point of the installed ``vq`` command, whose modules it imports where ctrl-C is expected.

The modules of the command take most of the time of a short one. A ctrl-C meanwhile showed where
they were, as a traceback.
"""

import sys
from typing import Final

#: What a shell makes of a process that ctrl-C ended; ``signals``, which has it, is not here yet.
_INTERRUPTED: Final = 130


def main() -> None:
    """Run the command; ends the process."""
    try:
        from vq.cli.main import main as run
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
    run()
