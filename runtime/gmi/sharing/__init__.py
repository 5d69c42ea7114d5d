"""Experience sharing: how samples get from the instances that play to those that train.

A serving instance writes each fragment into a chunk of memory that all instances map (`chunks.Dispenser`). The process
of the loop says which chunk that is, and which trainer takes it (`migrator.Migrator`). The trainer reads it where it
lies (`chunks.Batcher`). No sample passes through a socket, and a chunk is written anew only after its fragment was
trained on, so a trainer that dies loses none.

Paper: GMI-DRL, section 4.2, figure 5: one channel for each field of a sample.
Departure: The compressor is no service of its own. A fragment's steps are joined where they are played, and a chunk is
one fragment. A chunk is routed as the range of an agent's steps that it is, all fields together: routed channel by
channel, fields of one sample can end in different trainers. What is to be taken is told in the events that ask for an
update.
"""
