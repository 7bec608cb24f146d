"""``vq console``: the web console and its accounts. Not here: the console itself."""
