"""What is drawn in the browser while a slider moves, before the server has answered."""
