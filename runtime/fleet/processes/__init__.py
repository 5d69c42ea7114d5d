"""Child processes: none outlives this one, however it ends, and none can bring it down.

`child` starts one of our modules, `inside` is what that module calls first, and `guarded` starts other programs.
"""
