"""Tables from run folders; meets the rest of the package through the folder on disk only."""
