"""What a Java is told that lives as long as a test: seconds, most of them to load classes."""

from typing import Final

#: The second compiler pays off in minutes, and who wrote Spark's classes is known.
SHORT_LIVED: Final = (
    "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 "
    "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
