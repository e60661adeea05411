"""Progress bars, the terminal view, the served report and trackers."""
