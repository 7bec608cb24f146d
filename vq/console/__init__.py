"""The web console: what operators see of clusters, and do to them, in a browser.

Rooms, the highest first:

    server | app    the process; everything put together as one ASGI application
    pages           one module for each page
    web             what every page is made of: security, languages, tables, rendering
    acts            the one door to operations: who may, written down before and after; the JSON API
    clusters        the clusters that are shown, and what the last looks at them have found
    accounts        who may log in, as what, and since when
    database        what the console itself remembers

The console is a client like others: brokers do not know it, and nothing of them needs it.
"""
