"""What several methods share: each module one idea."""
