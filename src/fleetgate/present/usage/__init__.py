"""Reports of usage: periods, sums by dimensions, and how they are written (rule U4)."""
