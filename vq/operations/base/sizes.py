"""How amounts of bytes and of time are written for people, in findings and in tables."""


def bytes_text(count: int | None) -> str | None:
    """Return a size for people, such as ``12.5 MiB``; None stays None."""
    if count is None:
        return None
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def duration_text(seconds: float) -> str:
    """Return a duration for people, such as ``12.5 s`` or ``3 h``."""
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 100 * size / (24 if unit == "d" else 60):
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.1f} s"
