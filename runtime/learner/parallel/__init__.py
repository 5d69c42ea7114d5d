"""The learner in several processes: each takes its share of every minibatch, and the gradients are summed.

The first process is the training itself. It starts the others, and tells them through their standard input what it is
about to do. All do the same on the same batch; only for a gradient each computes its own samples, and then they need
each other (see `runtime.learner.actor_critic`). docs/decisions/0012 says why.
"""
