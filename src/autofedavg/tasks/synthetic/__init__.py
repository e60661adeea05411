"""Generated hospitals."""
