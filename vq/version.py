"""The version, where every layer may read it: ``vq`` itself names the client."""

from typing import Final

__version__: Final = "0.1.0"
