"""What is tuned: the user's loader and the knobs it is rebuilt with."""
