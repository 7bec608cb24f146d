"""Who may do what on this node.

In here: what a node knows of rules, what each request needs, and the decision. Not in here: the
door that asks (``serving.dispatcher``), and the rules as such (``vq.security``).
"""
