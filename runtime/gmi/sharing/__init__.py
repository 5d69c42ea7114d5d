"""Experience sharing: how samples get from the instances that play to those that train.

A `Dispenser` in each serving instance writes samples into memory that all instances map; the `Migrator` of the process
that started them says which trainer gets which; a `Batcher` in each trainer copies them into batches. Samples never
pass through a socket: messages of 28 bytes say where they lie. A message follows what it tells of, and the kernel
orders the two on every processor.

Paper: GMI-DRL, section 4.2, figure 5.
Departure: The compressor is no service of its own. A dispenser writes samples where they are to lie in their chunk, so
that nothing is left to be joined. Chunks are routed as ranges of an agent's samples, all fields together: routed
channel by channel, fields of one sample can end in different trainers.
"""
