"""What every subject needs.

In here: opening a cluster, who acts, errors for an unknown outcome, how sizes are written. Not in
here: a question or a change of an operator.
"""
