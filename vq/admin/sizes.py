"""How an amount of bytes is written for people, in findings and in tables."""


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
