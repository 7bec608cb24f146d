"""The producer: messages in, batches out, outcomes back. ``core`` puts the rooms together."""
