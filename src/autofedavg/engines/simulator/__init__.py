"""All clients on this machine."""
