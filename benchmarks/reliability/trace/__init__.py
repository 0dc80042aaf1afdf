"""One seeded trace of faults for hornbook, torchrun, Lightning and torchft: time and goodput."""
