"""What the console itself remembers, in SQLite, PostgreSQL, MariaDB or MySQL.

In here: the tables, their migrations, and how work gets a connection. Not in here: what the rows
mean; that is with the accounts, the audit and the history of measurements.
"""
