"""The consumer: membership, fetching, delivery, commits."""
