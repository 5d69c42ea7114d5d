"""Experience sharing: moves samples from playing to training instances.

A serving instance writes each fragment into a chunk of memory that all instances map (`channel.Channel`). The loop's
process assigns the chunk, and the trainer that takes it (`migrator.Migrator`). The trainer copies it from there. The
two kinds of instances are the fleets of `fleets.py`. Samples never pass through a socket. A chunk is overwritten only
after its fragment was trained on, so a trainer that dies loses none.

Paper: GMI-DRL, section 4.2, figure 5: one channel for each field of a sample.
Departure: The compressor is not a separate service. A fragment's steps are joined where they are played, and a chunk is
one fragment. A chunk is routed as a range of one agent's steps, with all fields together: routing each channel
separately could send fields of one sample to different trainers. Update events name the chunks to take.
"""
