"""Producers and consumers with the settings of a cluster's, over local queues.

In here: ``MessageFactoryConfig(local="dir")`` for threads. Not in here: coroutines (``vq.aio``),
and the threads that call listeners (``listeners``).
"""
