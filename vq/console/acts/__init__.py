"""The one door to operations: who may do what; acts are written down before they begin, and after.

Pages, the JSON API and whatever comes later call ``Door``. Not here: what operations do.
"""
