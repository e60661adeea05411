"""The state of a run or a study in the terminal."""
