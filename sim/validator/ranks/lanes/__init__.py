"""What a replay runs once in every round: the paced step, or the user's model, under one system each."""
