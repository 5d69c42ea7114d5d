"""Many instances on one machine: processes that each hold environments, policy and trainer."""
