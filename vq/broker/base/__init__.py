"""What every part of a broker works with: its settings, its threads and tasks, sessions of clients,
pauses and paces.

In here: what knows neither a partition nor a disk. Not in here: what only one room uses; that
belongs to the room.
"""
