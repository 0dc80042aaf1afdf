"""hornbook beside transformers' Trainer and Lightning: what a resume makes of kills within a save, and of damage."""
