"""What an operator asks and changes, as plain values and functions."""
