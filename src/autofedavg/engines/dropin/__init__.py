"""Learned weights for federations of other people's making: their network, loop and engine.

The engine trains, as it always did; of Algorithm 1 only LearnAggWeight and the average are ours.
`learner` is the server's side, `responder` a site's; neither knows an engine.
"""
