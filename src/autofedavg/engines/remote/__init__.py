"""What every real engine shares: jobs, the server's side of them and a site's side of them.

An engine's own room only carries notes between the two.
"""
