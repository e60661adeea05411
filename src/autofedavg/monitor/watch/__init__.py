"""A run, or a study, looked at while it goes on: in the terminal and in the browser."""
