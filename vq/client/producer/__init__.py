"""The producer: messages in, batches out, outcomes back."""
