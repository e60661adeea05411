"""Learned weights for other federations: your network, your training loop, your engine.

The engine trains, and this package adds LearnAggWeight and the average of Algorithm 1. `learner` is
the server's side, `responder` a site's side; neither knows an engine.
"""
