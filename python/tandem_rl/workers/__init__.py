"""What the processes have in common in which Tandem runs code of users (rewards, environments): `pipe` is how they speak with
the trainer and end with it, `loading` finds what a run file names."""
