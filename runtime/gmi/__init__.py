"""GMI-DRL: many small instances on one machine, each with its own environments, agent and trainer.

Paper: GMI-DRL (Wang et al. 2022), "GPU multiplexing instances". On a CPU an instance is a process on cores of its own.
"""
