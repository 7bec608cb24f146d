"""The wire: frames, headers, connection state, and the one port that opens sockets."""
