"""Producers and consumers: what applications use to send and receive messages."""
