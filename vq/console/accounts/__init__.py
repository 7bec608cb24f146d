"""Who may log in, as what, and since when. Not here: what a role may do; that is ``acts``'."""
