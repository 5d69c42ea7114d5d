"""What the benchmarks against other libraries share; see benchmarks/parity_ppo.py and benchmarks/parity_impact.py."""
