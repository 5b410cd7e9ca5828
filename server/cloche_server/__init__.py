"""Host side of Cloche: the server, its drivers and its state."""
