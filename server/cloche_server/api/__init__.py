"""What the server's own routes do: each function takes a checked `Call` and gives a `Reply`. No HTTP here."""
