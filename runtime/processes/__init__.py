"""How other processes live and die: none outlives this one, however it ends, and whatever they do, this one goes on.

`child` starts a module of ours, `inside` is what that module calls first, and `guarded` starts a program of others.
"""
