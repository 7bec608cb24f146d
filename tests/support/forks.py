"""Programs of tests that fork although they have threads."""

from typing import Final

#: Options of an interpreter whose standard error is looked at: from Python 3.12 on, such a fork is
#: warned of, since the child may hang.
UNWARNED: Final = ("-W", "ignore:This process:DeprecationWarning")
