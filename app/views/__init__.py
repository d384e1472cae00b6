"""What is on the screen, a page or a section a file."""
