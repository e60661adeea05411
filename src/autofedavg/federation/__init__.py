"""The port between a server and its clients, and both its ends."""
